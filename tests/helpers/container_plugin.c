/* A plugin for srun that takes the options of pyxis for containers, checks them, and starts tasks in a root of their own.
 *
 * An image is a folder: IMAGE/content says what it holds (lines "SOURCE TARGET", bind mounts), IMAGE/environment what it
 * sets (lines "NAME=VALUE"), which wins over the environment of srun but for the names in --container-env. Like enroot
 * it needs no root: a task gets a user and a mount namespace, and sees /dev, /proc, /sys, the image and its mounts only.
 * What it does not have: registries, squashfs, one container for all tasks of a node, --container-name.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <sched.h>
#include <slurm/spank.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

SPANK_PLUGIN(container_plugin, 1);

static char *image, *mounts, *workdir, *env_names;

static int refuse(const char *what, const char *which)
{
	slurm_error("container: %s: %s: %s", what, which, strerror(errno));
	return -1;
}

static int keep(char **where, const char *name, const char *given)
{
	if (!given || !*given || (*where && strcmp(*where, given))) {
		slurm_error("container: %s: no value, or two different ones", name);
		return -1;
	}
	if (!*where)
		*where = strdup(given);
	return 0;
}

static int take_image(int val, const char *given, int remote) { return keep(&image, "--container-image", given); }
static int take_mounts(int val, const char *given, int remote) { return keep(&mounts, "--container-mounts", given); }
static int take_workdir(int val, const char *given, int remote) { return keep(&workdir, "--container-workdir", given); }
static int take_env(int val, const char *given, int remote) { return keep(&env_names, "--container-env", given); }

static struct spank_option taken[] = {
	{"container-image", "PATH", "the image", 1, 0, take_image},
	{"container-mounts", "SRC:DST[:FLAGS][,SRC:DST...]", "bind mounts", 1, 0, take_mounts},
	{"container-workdir", "PATH", "working directory inside the container", 1, 0, take_workdir},
	{"container-env", "NAME[,NAME...]", "variables that the image does not override", 1, 0, take_env},
	SPANK_OPTIONS_TABLE_END};

int slurm_spank_init(spank_t spank, int ac, char **av)
{
	for (struct spank_option *one = taken; one->name; one++)
		if (spank_option_register(spank, one) != ESPANK_SUCCESS)
			return -1;
	return 0;
}

static int write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	ssize_t wrote = write(fd, text, strlen(text));
	close(fd);
	return wrote < 0 ? -1 : 0;
}

static int make_folders(char *path)
{
	for (char *at = strchr(path + 1, '/');; at = strchr(at + 1, '/')) {
		if (at)
			*at = 0;
		int failed = mkdir(path, 0755) && errno != EEXIST;
		if (at)
			*at = '/';
		if (failed || !at)
			return failed ? -1 : 0;
	}
}

static int bind(const char *source, const char *target, bool read_only)
{
	char path[PATH_MAX];
	struct stat is;
	struct statvfs has;
	if (source[0] != '/' || target[0] != '/') {
		slurm_error("container: mount %s:%s: both must be absolute paths", source, target);
		return -1;
	}
	if (stat(source, &is))
		return refuse("mount", source);
	snprintf(path, sizeof path, "root%s", target);
	if (!S_ISDIR(is.st_mode) || make_folders(path)) {
		char above[PATH_MAX];
		snprintf(above, sizeof above, "%s", path);
		make_folders(dirname(above));
		close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
	}
	if (mount(source, path, NULL, MS_BIND | MS_REC, NULL))
		return refuse("mount", source);
	if (!read_only)
		return 0;
	if (statvfs(path, &has)) /* the flags that a remount must keep have the same values in both calls, but for one */
		return refuse("look at", target);
	unsigned long kept = has.f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME | MS_NODIRATIME);
	kept |= has.f_flag & ST_RELATIME ? MS_RELATIME : 0;
	return mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | kept, NULL) ? refuse("read-only", target) : 0;
}

static int own_namespaces(void)
{
	char map[64];
	uid_t uid = geteuid();
	gid_t gid = getegid();
	if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
		return refuse("unshare", "user and mount namespace");
	snprintf(map, sizeof map, "%u %u 1", uid, uid);
	if (write_file("/proc/self/setgroups", "deny") || write_file("/proc/self/uid_map", map))
		return refuse("map", map);
	snprintf(map, sizeof map, "%u %u 1", gid, gid);
	return write_file("/proc/self/gid_map", map) ? refuse("map", map) : 0;
}

static int fill(void)
{
	static const char *const always[] = {"/dev", "/proc", "/sys"};
	char line[PATH_MAX], source[PATH_MAX], target[PATH_MAX];
	for (size_t i = 0; i < 3; i++)
		if (bind(always[i], always[i], false))
			return -1;
	FILE *content = fopen("content", "re");
	if (!content)
		return refuse("image", image);
	while (fgets(line, sizeof line, content))
		if (sscanf(line, "%s %s", source, target) == 2 && bind(source, target, true))
			return -1;
	fclose(content);
	for (char *rest = mounts, *one; rest && (one = strsep(&rest, ","));) {
		char *from = strsep(&one, ":"), *to = strsep(&one, ":");
		if (bind(from, to ? to : from, one && strstr(one, "ro")))
			return -1;
	}
	return 0;
}

static bool is_kept(const char *name)
{
	char copy[4096];
	snprintf(copy, sizeof copy, "%s", env_names ? env_names : "");
	for (char *rest = copy, *one; (one = strsep(&rest, ","));)
		if (!strcmp(one, name))
			return true;
	return false;
}

static int set_environment(spank_t spank)
{
	char line[PATH_MAX];
	FILE *file = fopen("environment", "re");
	while (file && fgets(line, sizeof line, file)) {
		char *value = line, *name = strsep(&value, "=");
		value[strcspn(value, "\n")] = 0;
		if (!is_kept(name) && spank_setenv(spank, name, value, 1) != ESPANK_SUCCESS)
			return -1;
	}
	return file ? fclose(file) : 0;
}

int slurm_spank_task_init(spank_t spank, int ac, char **av)
{
	if (!image)
		return 0;
	if (chdir(image))
		return refuse("image", image);
	if (set_environment(spank) || own_namespaces())
		return -1;
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount("none", "root", "tmpfs", 0, "mode=755"))
		return refuse("root", image);
	if (mkdir("root/tmp", 01777) || fill() || chdir("root"))
		return -1;
	if (syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH))
		return refuse("pivot_root", image);
	return chdir(workdir ? workdir : "/") ? refuse("--container-workdir", workdir) : 0;
}
