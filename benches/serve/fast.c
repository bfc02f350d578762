// The fastest HTTP server that there can be: one thread, epoll, one answer for all. `fast PORT`; prints a line when it listens.
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define MOST 4096
static const char ANSWER[] = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello";
// How much of the blank line that ends a head each connection has sent.
static int seen[MOST];

int main(int count, char **words) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1, epoll = epoll_create1(0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(count > 1 ? atoi(words[1]) : 8000)};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 1024)) return perror("listen"), 1;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, ready[64];
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
    puts("listens");
    fflush(stdout);
    for (;;) {
        int events = epoll_wait(epoll, ready, 64, -1);
        if (events < 0 && errno != EINTR) return perror("epoll_wait"), 1;
        for (int i = 0; i < events; i++) {
            int from = ready[i].data.fd;
            if (from == listener) {
                int client = accept(listener, NULL, NULL);
                if (client >= MOST) close(client);
                if (client < 0 || client >= MOST) continue;
                setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                seen[client] = 0;
                event.data.fd = client;
                epoll_ctl(epoll, EPOLL_CTL_ADD, client, &event);
                continue;
            }
            char data[16384];
            ssize_t got = read(from, data, sizeof data);
            if (got <= 0) {
                close(from);
                continue;
            }
            for (ssize_t at = 0; at < got; at++) {
                seen[from] = data[at] == "\r\n\r\n"[seen[from]] ? seen[from] + 1 : data[at] == '\r';
                if (seen[from] == 4) {
                    seen[from] = 0;
                    if (write(from, ANSWER, sizeof ANSWER - 1) < 0) break;
                }
            }
        }
    }
}
