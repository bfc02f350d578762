/* What CRIU asks about the sockets of a network. Of TCP it wants all, whatever their state: the kernel goes through a table of
 * connections, which on a machine with 128 GB has half a million places, and that for each family. */
#define _GNU_SOURCE
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "in_criu.h"

struct request {
	struct nlmsghdr head;
	struct inet_diag_req_v2 asked;
};

static int asks_for_tcp(const struct msghdr *message)
{
	if (message->msg_iovlen != 1 || message->msg_iov->iov_len < sizeof(struct request))
		return 0;
	const struct request *request = message->msg_iov->iov_base;
	int family = request->asked.sdiag_family;
	return request->head.nlmsg_type == SOCK_DIAG_BY_FAMILY && (request->head.nlmsg_flags & NLM_F_DUMP) == NLM_F_DUMP &&
	       (family == AF_INET || family == AF_INET6) && request->asked.sdiag_protocol == IPPROTO_TCP;
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	if (!is_criu() || !asks_for_tcp(message) || !is_found(&shared->all_listen))
		return syscall(SYS_sendmsg, fd, message, flags);
	struct iovec part = *message->msg_iov;
	uint8_t bytes[256];
	if (part.iov_len > sizeof(bytes))
		return syscall(SYS_sendmsg, fd, message, flags);
	memcpy(bytes, part.iov_base, part.iov_len);
	struct request *request = (void *)bytes;
	request->asked.idiag_states &= 1 << TCP_LISTEN;
	part.iov_base = bytes;
	struct msghdr less = *message;
	less.msg_iov = &part;
	return syscall(SYS_sendmsg, fd, &less, flags);
}
