// Asks at a fixed rate on connections that stay, and prints how long each answer took, in nanoseconds, a line each.
// `load PORT CONNECTIONS RATE SECONDS [REQUEST]`; REQUEST is a file with what is sent in place of `GET /`, in which each connection
// has its number, in two digits, where the file has `@@`. A connection whose answer is still to come is passed over, and if all are, the request
// is late by as much as it waits. A time begins when the request is sent.
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MOST 1024
static char request[4096] = "GET / HTTP/1.1\r\nHost: bench\r\n\r\n";
static size_t size;

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static struct { int64_t sent; size_t got; char head[4096]; } state[MOST];

// Whether the answer is complete: its head, and as much as that says.
static int is_whole(int which) {
    state[which].head[state[which].got] = 0;
    char *end = strstr(state[which].head, "\r\n\r\n"), *length = strcasestr(state[which].head, "\r\ncontent-length:");
    if (!end || !length) return 0;
    return state[which].got >= (size_t)(end + 4 - state[which].head) + strtoul(length + 17, NULL, 10);
}

int main(int count, char **words) {
    if (count != 5 && count != 6) return fputs("load PORT CONNECTIONS RATE SECONDS [REQUEST]\n", stderr), 2;
    size = strlen(request);
    if (count == 6) {
        FILE *file = fopen(words[5], "rb");
        if (!file) return perror(words[5]), 2;
        size = fread(request, 1, sizeof request, file);
        fclose(file);
    }
    char *number = memmem(request, size, "@@", 2);
    int connections = atoi(words[2]), one = 1;
    int64_t total = (int64_t)(atof(words[3]) * atof(words[4])), pause = (int64_t)(1e9 / atof(words[3]));
    if (connections < 1 || connections > MOST) return fputs("too many connections\n", stderr), 2;
    struct pollfd polled[MOST];
    for (int i = 0; i < connections; i++) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(words[1]))};
        at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        polled[i] = (struct pollfd){.fd = socket(AF_INET, SOCK_STREAM, 0), .events = POLLIN};
        if (connect(polled[i].fd, (struct sockaddr *)&at, sizeof at)) return perror("connect"), 1;
        setsockopt(polled[i].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    int64_t *took = calloc(total, sizeof *took), begun = now(), asked = 0, answered = 0;
    int next = 0;
    while (answered < total) {
        int64_t due = begun + asked * pause;
        if (asked < total && now() >= due) {
            for (int i = 0; i < connections && asked < total; i++, next = (next + 1) % connections) {
                if (state[next].sent) continue;
                state[next].sent = now();
                state[next].got = 0;
                if (number) number[0] = '0' + next / 10 % 10, number[1] = '0' + next % 10;
                if (write(polled[next].fd, request, size) < 0) return perror("write"), 1;
                asked++;
                next = (next + 1) % connections;
                break;
            }
        }
        int64_t left = asked < total ? begun + asked * pause - now() : 1000000000LL;
        struct timespec wait = {.tv_sec = left > 0 ? left / 1000000000LL : 0, .tv_nsec = left > 0 ? left % 1000000000LL : 0};
        if (ppoll(polled, connections, &wait, NULL) < 0 && errno != EINTR) return perror("ppoll"), 1;
        for (int i = 0; i < connections; i++) {
            if (!(polled[i].revents & (POLLIN | POLLHUP | POLLERR))) continue;
            ssize_t got = read(polled[i].fd, state[i].head + state[i].got, sizeof state[i].head - 1 - state[i].got);
            if (got <= 0) return fputs("a connection ended\n", stderr), 1;
            state[i].got += got;
            if (!is_whole(i)) continue;
            if (strncmp(state[i].head, "HTTP/1.1 200", 12)) return fprintf(stderr, "%s\n", state[i].head), 1;
            took[answered++] = now() - state[i].sent;
            state[i].sent = 0;
        }
    }
    for (int64_t i = 0; i < answered; i++) printf("%lld\n", (long long)took[i]);
    fprintf(stderr, "%f\n", (now() - begun) / 1e9);
}
