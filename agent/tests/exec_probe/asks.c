// A plugin that sends a request and waits for the answer: `asks unix PATH` or `asks tcp PORT`, and with a third argument it waits in
// poll(2) as programs of the Go runtime do, else in recv(2). Used by stuck.rs. Does not: read what comes.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

int main(int argc, char **argv)
{
	struct sockaddr_un path = { .sun_family = AF_UNIX };
	struct sockaddr_in port = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int is_unix, fd;
	char answer;
	if (argc < 3)
		return 2;
	is_unix = !strcmp(argv[1], "unix");
	strncpy(path.sun_path, argv[2], sizeof(path.sun_path) - 1);
	port.sin_port = htons(atoi(argv[2]));
	fd = socket(is_unix ? AF_UNIX : AF_INET, SOCK_STREAM, 0);
	if (connect(fd, is_unix ? (void *)&path : (void *)&port, is_unix ? sizeof(path) : sizeof(port)))
		return 3;
	if (send(fd, "?", 1, 0) != 1)
		return 4;
	if (argc > 3) {
		struct pollfd wanted = { .fd = fd, .events = POLLIN };
		poll(&wanted, 1, -1);
	}
	return recv(fd, &answer, 1, 0) < 0;
}
