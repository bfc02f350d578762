/* Says who it is, and whether it has a GPU; then waits for the file that it is given, and says what is in it. */

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int count, char **words)
{
	gid_t groups[64];
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	int (*init)(unsigned) = library ? (int (*)(unsigned))dlsym(library, "cuInit") : NULL;
	const char *home = getenv("HOME"), *user = getenv("USER");
	char text[64];
	int many = getgroups(64, groups);

	printf("{\"ids\": [%u, %u], \"groups\": [", getuid(), getgid());
	for (int at = 0; at < many; at++)
		printf("%s%u", at ? ", " : "", groups[at]);
	printf("], \"HOME\": \"%s\", \"USER\": \"%s\", \"cuda\": %d}\n", home ? home : "", user ? user : "", init ? init(0) : -1);
	fflush(stdout);
	for (;;) {
		FILE *wish = count > 1 ? fopen(words[1], "r") : NULL;

		if (wish && fgets(text, sizeof(text), wish)) {
			printf("%s\n", text);
			fflush(stdout);
			pause();
		}
		if (wish)
			fclose(wish);
		usleep(20000);
	}
}
