// A CNI plugin as one static binary without a C library: runs /bin/true, reads its configuration, answers with an error of
// its own and exits with 4. Built and run by recognition.rs.

#if defined(__x86_64__)
enum { READ = 0, WRITE = 1, CLONE = 56, EXECVE = 59, WAIT4 = 61, EXIT_GROUP = 231 };
static long call(long n, long a, long b, long c, long d)
{
	long result;
	register long fourth __asm__("r10") = d;
	register long fifth __asm__("r8") = 0;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(n), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth)
			 : "rcx", "r11", "memory");
	return result;
}
#elif defined(__aarch64__)
enum { READ = 63, WRITE = 64, CLONE = 220, EXECVE = 221, WAIT4 = 260, EXIT_GROUP = 94 };
static long call(long n, long a, long b, long c, long d)
{
	register long number __asm__("x8") = n;
	register long first __asm__("x0") = a;
	register long second __asm__("x1") = b;
	register long third __asm__("x2") = c;
	register long fourth __asm__("x3") = d;
	register long fifth __asm__("x4") = 0;
	__asm__ volatile("svc #0"
			 : "+r"(first)
			 : "r"(number), "r"(second), "r"(third), "r"(fourth), "r"(fifth)
			 : "memory");
	return first;
}
#else
#error "not for this processor"
#endif

enum { SIGCHLD = 17 };

static const char answer[] = "{\"cniVersion\":\"1.0.0\",\"code\":100,\"msg\":\"no policy\"}\n";
static char configuration[4096];

void _start(void)
{
	long child = call(CLONE, SIGCHLD, 0, 0, 0);
	if (child == 0) {
		const char *arguments[] = { "/bin/true", 0 };
		call(EXECVE, (long)arguments[0], (long)arguments, 0, 0);
		call(EXIT_GROUP, 127, 0, 0, 0);
	}
	call(WAIT4, child, 0, 0, 0);
	while (call(READ, 0, (long)configuration, sizeof(configuration), 0) > 0)
		;
	call(WRITE, 1, (long)answer, sizeof(answer) - 1, 0);
	call(EXIT_GROUP, 4, 0, 0, 0);
}
