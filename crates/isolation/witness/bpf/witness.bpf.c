/* What the host's kernel says of the processes and connections in sandboxes.
 *
 * Each program runs where the event happens, in the kernel, finds out whether the process is in a sandbox (its cgroup, or
 * one above it, is in `boxes`), and if so writes a record into that sandbox's own ring: nobody can crowd out another. Nothing
 * in a sandbox can reach these maps. What does not fit is counted in `counters`, of that sandbox.
 *
 * Which exec a process belongs to is decided when the sandbox's first process (its agent) forks: what is forked from there
 * inherits it, wherever it moves among cgroups.
 *
 * `make -C crates/isolation/witness/bpf` builds the object that is committed beside this. */
#include "kernel.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

enum { EXEC = 1, FORK = 2, EXIT = 3, CONNECT = 4, ACCEPT = 5, LISTEN = 6 };
enum { OVERLAY = 1, UPPER = 2, READ_ONLY_MOUNT = 4, UNLINKED = 8, PATH_CUT = 16, CWD_CUT = 32 };
/* Why a program may not run; that it ran all the same, because that is only observed; that it could not be killed; that it
 * leads to a profile that its process may not ask for. */
enum { NOT_UNCHANGED = 64, NOT_OF_IMAGE = 128, LOADER = 256, NOT_LISTED = 512, BY_RULE = 1024, OBSERVED = 2048, NOT_KILLED = 4096,
	NOT_DOWN = 8192 };
/* What is wanted of a sandbox: records; only programs of its image; only programs in `rules`; `rules` at all; refusals that
 * are only told. Its agent runs already: none of its programs is that. Its connections are marked with who makes them. Its
 * processes are in profiles. */
enum { BOX_TRACED = 1, BOX_IMAGE = 2, BOX_LISTED = 4, BOX_RULES = 8, BOX_OBSERVED = 16, BOX_AGENT_RUNS = 32, BOX_SENDERS = 64,
	BOX_PROFILES = 128 };

#define EXEC_NAME 48
/* Cgroups above a process that are looked at. */
#define LEVELS_MAX 8
#define NAME_MAX_BYTES 256
#define PATH_STEPS_MAX 40
/* Maps that keep something with a task, of all tools of the host, among which ours is looked for. */
#define TASK_MAPS_MAX 32
/* Where in `data` the program's path, the working directory and the arguments must have ended or begun. */
#define FILE_END 1024
#define CWD_END 2560
#define ARGS_MAX 4095
#define DATA_BYTES 8192

#define OVERLAYFS_MAGIC 0x794c7630
#define MNT_READONLY 0x40
#define UPID_BYTES 16
#define TCP_ESTABLISHED 1
#define TCP_SYN_RECV 3
#define TCP_LISTEN 10
#define AF_INET 2
#define AF_INET6 10
#define SOCK_STREAM 1
#define SOCK_DGRAM 2
#define RB_NO_WAKEUP 1
#define RB_FORCE_WAKEUP 2
#define STORAGE_CREATE 1
#define SIGKILL 9

struct box {
	u32 slot, flags;
	/* Nesting of the sandbox's pid namespace; set by its first exec, which is its agent's. */
	u32 pid_level, first_id;
	char sandbox[40];
	/* The directory of the host that it has instead of an image; zeros where it has an image. */
	u64 bound_inode;
	u32 bound_device, pad;
	/* What was changed last before this moment of the wall clock is of the image, although it lies above its layers. */
	u64 image_until_ns;
};
struct counter {
	u64 next, lost;
};
struct origin {
	/* Pid inside of the process that the agent forked. */
	u32 root;
	/* In records of programs that begin: the number of the profile that it runs in. */
	u32 profile;
	char exec[EXEC_NAME];
};
/* What is known of a task: where it comes from, the file that it runs, if that is the image's, and its profile; zeros otherwise. */
struct known {
	struct origin origin;
	u64 inode;
	u32 device, profile;
};
struct head {
	u64 at, box, number, start;
	u32 kind, pid, inner, uid;
	struct origin origin;
};
struct executed {
	struct head head;
	u64 parent_start, inode, size, ctime_s, magic;
	u32 parent, argc, device, flags, layer, ctime_ns, args_bytes;
	u16 file_len, cwd_len, args_len, pad;
	u32 at;
	char data[DATA_BYTES];
};
struct forked {
	struct head head;
	u64 parent_start;
	u32 parent, pad;
};
struct exited {
	struct head head;
	u64 cpu_ns, peak_pages;
	u32 code, pad;
};
struct socket {
	struct head head;
	u16 family, protocol, local_port, peer_port;
	u32 local[4], peer[4];
};
/* Who listens: kept with the socket, and copied to those that are accepted from it. */
struct listener {
	u64 box, start;
	u32 pid, inner, uid, pad;
	struct origin origin;
};
/* Where the fields of overlayfs lie, which may be a module with types of its own. */
struct config {
	u32 has_overlay, inode_vfs, inode_upper, inode_entry, entry_lower, path_layer, path_dentry, layer_index;
	u64 wake_above;
};

/* Made by the loader, which knows types and sizes; only the names count here. */
#define MAP(name) struct { int (*type)[1]; } name SEC(".maps")
MAP(rings);
MAP(boxes);
MAP(counters);
MAP(origins);
MAP(listeners);
MAP(scratch);
MAP(config);

#include "gate.h"

INLINE struct box *own(u64 *id)
{
	for (int level = 1; level <= LEVELS_MAX; level++) {
		*id = ancestor_cgroup(level);
		if (!*id)
			return 0;
		struct box *box = map_lookup(&boxes, id);
		if (box)
			return box;
	}
	return 0;
}

INLINE struct config *settings(void)
{
	u32 zero = 0;
	return map_lookup(&config, &zero);
}

INLINE void emit(struct box *box, struct head *head, u64 size)
{
	u32 slot = box->slot;
	struct counter *counter = map_lookup(&counters, &slot);
	struct config *set = settings();
	if (!counter || !set)
		return;
	head->number = __sync_fetch_and_add(&counter->next, 1);
	void *ring = map_lookup(&rings, &slot);
	/* A wake-up for each record costs more than the record: the reader looks often, and is woken when much waits. */
	u64 how = ring && ring_query(ring, 0) > set->wake_above ? RB_FORCE_WAKEUP : RB_NO_WAKEUP;
	if (!ring || ring_output(ring, head, size, how))
		__sync_fetch_and_add(&counter->lost, 1);
}

INLINE u32 inner_pid(struct task_struct *task, u32 level)
{
	struct pid *pid = READ(READ(task, group_leader), thread_pid);
	u32 nr = 0, own_level = READ(pid, level);
	if (level > own_level)
		return 0;
	read_kernel(&nr, sizeof nr, (char *)&pid->numbers + (level & 31) * UPID_BYTES);
	return nr;
}

INLINE void fill(struct head *head, u32 kind, struct box *box, u64 id, struct task_struct *task)
{
	head->at = boot_ns();
	head->box = id;
	head->kind = kind;
	head->pid = READ(task, tgid);
	head->start = READ(READ(task, group_leader), start_boottime);
	head->inner = inner_pid(task, box->pid_level);
	head->uid = current_uid_gid();
}

/* Names from `dentry` up to the root that the process sees, each with a NUL, from `rec->at` on, which is moved to their
 * end. Says whether there were more than may be. The verifier follows every round of a loop for every value that it knows
 * something about: so where to write stands in memory, of which it knows nothing. */
NOINLINE int names(struct executed *rec, u64 dentry_, u64 mnt_, u32 end)
{
	struct dentry *dentry = (void *)dentry_;
	struct vfsmount *mnt = (void *)mnt_;
	volatile u32 *place = &rec->at;
#pragma clang loop unroll(disable)
	for (int step = 0; step < PATH_STEPS_MAX; step++) {
		if (dentry == READ(mnt, mnt_root)) {
			struct mount *mount = (void *)mnt - OFFSET(struct mount, mnt);
			struct mount *above = READ(mount, mnt_parent);
			if (above == mount)
				return 0;
			dentry = READ(mount, mnt_mountpoint);
			mnt = (void *)above + OFFSET(struct mount, mnt);
			continue;
		}
		u32 at = *place;
		if (at > end - NAME_MAX_BYTES || at > CWD_END - NAME_MAX_BYTES)
			return 1;
		long count = read_kernel_text(rec->data + at, NAME_MAX_BYTES, READ(dentry, d_name.name));
		if (count <= 0)
			return 0;
		*place = at + (u32)count;
		struct dentry *above = READ(dentry, d_parent);
		/* A file of no directory: of memory, or of a tree that is attached nowhere. */
		if (above == dentry)
			return 0;
		dentry = above;
	}
	return 1;
}

/* The file below an overlay, and whether anything was written to it since: then it has an upper. */
INLINE void identify(struct executed *rec, struct file *file)
{
	struct inode *inode = READ(file, f_inode);
	struct super_block *sb = READ(inode, i_sb);
	struct config *set = settings();
	rec->magic = READ(sb, s_magic);
	if (READ(READ(file, f_path.mnt), mnt_flags) & MNT_READONLY)
		rec->flags |= READ_ONLY_MOUNT;
	if (set && set->has_overlay && rec->magic == OVERLAYFS_MAGIC) {
		char *base = (char *)inode - set->inode_vfs;
		struct dentry *upper = 0, *dentry = 0;
		char *entry = 0, *layer = 0;
		rec->flags |= OVERLAY;
		read_kernel(&upper, sizeof upper, base + set->inode_upper);
		if (upper) {
			rec->flags |= UPPER;
			dentry = upper;
		} else {
			read_kernel(&entry, sizeof entry, base + set->inode_entry);
			read_kernel(&dentry, sizeof dentry, entry + set->entry_lower + set->path_dentry);
			read_kernel(&layer, sizeof layer, entry + set->entry_lower + set->path_layer);
			read_kernel(&rec->layer, sizeof rec->layer, layer + set->layer_index);
		}
		struct inode *real = READ(dentry, d_inode);
		if (real)
			inode = real;
		sb = READ(inode, i_sb);
	}
	rec->inode = READ(inode, i_ino);
	rec->device = READ(sb, s_dev);
	rec->size = READ(inode, i_size);
	if (!READ(inode, i_nlink))
		rec->flags |= UNLINKED;
	if (EXISTS(struct inode, i_ctime_sec)) {
		rec->ctime_s = READ(inode, i_ctime_sec);
		rec->ctime_ns = READ(inode, i_ctime_nsec);
	}
}

INLINE void arguments(struct executed *rec, struct task_struct *task, u32 at)
{
	struct mm_struct *mm = READ(task, mm);
	u64 from = READ(mm, arg_start), bytes = READ(mm, arg_end) - from;
	rec->args_bytes = bytes > 0xffffffff ? 0xffffffff : bytes;
	if (bytes > ARGS_MAX)
		bytes = ARGS_MAX;
	if (at > CWD_END || read_user(rec->data + at, bytes & ARGS_MAX, (void *)from))
		return;
	rec->args_len = bytes;
}

#include "profile.h"
#include "sender.h"

SEC("tp_btf/sched_process_exec") int on_exec(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	struct linux_binprm *program = (void *)ctx[2];
	u64 id;
	u32 zero = 0;
	struct box *box = own(&id);
	if (!box)
		return 0;
	int agent = !box->pid_level && !(box->flags & BOX_AGENT_RUNS);
	if (!box->pid_level)
		box->pid_level = READ(READ(READ(task, group_leader), thread_pid), level);
	struct executed *rec = map_lookup(&scratch, &zero);
	if (!rec)
		return 0;
	rec->flags = rec->layer = rec->args_len = rec->ctime_ns = rec->pad = rec->at = 0;
	rec->ctime_s = 0;
	struct file *file = READ(program, file);
	identify(rec, file);
	int ours = is_ours(id, rec), unchanged = ours || is_unchanged(box, rec, file);
	gate(box, id, rec, file, agent || ours, unchanged);
	remember(box, task, rec, unchanged);
	step(box, id, task, rec, ours);
	if (!(box->flags & BOX_TRACED))
		return 0;
	fill(&rec->head, EXEC, box, id, task);
	struct known *known = task_storage_get(&origins, task, 0, 0);
	if (known) {
		rec->head.origin = known->origin;
		rec->head.origin.profile = known->profile;
	} else {
		__builtin_memset(&rec->head.origin, 0, sizeof rec->head.origin);
	}
	rec->argc = READ(program, argc);
	struct task_struct *parent = READ(task, real_parent);
	rec->parent = READ(parent, tgid);
	rec->parent_start = READ(READ(parent, group_leader), start_boottime);
	if (names(rec, (u64)READ(file, f_path.dentry), (u64)READ(file, f_path.mnt), FILE_END))
		rec->flags |= PATH_CUT;
	rec->file_len = rec->at;
	struct fs_struct *fs = READ(task, fs);
	if (names(rec, (u64)READ(fs, pwd.dentry), (u64)READ(fs, pwd.mnt), CWD_END))
		rec->flags |= CWD_CUT;
	u32 at = rec->at & 0xfff;
	rec->cwd_len = at - rec->file_len;
	arguments(rec, task, at);
	u64 size = __builtin_offsetof(struct executed, data) + at + rec->args_len;
	if (size <= sizeof *rec)
		emit(box, &rec->head, size);
	return 0;
}

/* What the agent forks begins an exec, whose name is that of the cgroup it was put into. */
INLINE void begin(struct task_struct *child, struct box *box, u64 id)
{
	struct known fresh = { .origin.root = inner_pid(child, box->pid_level) };
	struct kernfs_node *node = READ(READ(READ(child, cgroups), dfl_cgrp), kn);
	read_kernel_text(fresh.origin.exec, EXEC_NAME, READ(node, name));
	if (box->flags & BOX_PROFILES)
		fresh.profile = first_profile(id, &fresh.origin);
	task_storage_get(&origins, child, &fresh, STORAGE_CREATE);
}

SEC("tp_btf/sched_process_fork") int on_fork(u64 *ctx)
{
	struct task_struct *parent = (void *)ctx[0], *child = (void *)ctx[1];
	u64 id;
	struct box *box = own(&id);
	if (!box)
		return 0;
	u32 pid = READ(child, tgid), is_thread = READ(child, pid) != pid;
	struct known *known = task_storage_get(&origins, parent, 0, 0);
	if (known) {
		struct known copy = *known;
		task_storage_get(&origins, child, &copy, STORAGE_CREATE);
	} else if (!is_thread && inner_pid(parent, box->pid_level) == 1) {
		begin(child, box, id);
	}
	if (is_thread || !(box->flags & BOX_TRACED))
		return 0;
	struct forked rec = {};
	fill(&rec.head, FORK, box, id, child);
	known = task_storage_get(&origins, child, 0, 0);
	if (known)
		rec.head.origin = known->origin;
	rec.parent = READ(parent, tgid);
	rec.parent_start = READ(READ(parent, group_leader), start_boottime);
	emit(box, &rec.head, sizeof rec);
	return 0;
}

SEC("tp_btf/sched_process_exit") int on_exit(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	struct signal_struct *signal = READ(task, signal);
	u64 id;
	struct box *box;
	/* Only with its last thread a process ends. */
	if (READ(signal, live.counter) || !(box = own(&id)) || !(box->flags & BOX_TRACED))
		return 0;
	struct exited rec = {};
	fill(&rec.head, EXIT, box, id, task);
	struct known *known = task_storage_get(&origins, task, 0, 0);
	if (known)
		rec.head.origin = known->origin;
	int group = READ(signal, group_exit_code);
	rec.code = group ? group : READ(task, exit_code);
	rec.cpu_ns = READ(signal, sum_sched_runtime) + READ(task, se.sum_exec_runtime);
	rec.peak_pages = READ(signal, maxrss);
	emit(box, &rec.head, sizeof rec);
	return 0;
}

/* What is known of the task that runs, read where the kernel keeps it: that of Linux 6.12 lets no program of a cgroup ask for it. What other
 * tools of the host keep with the task lies in the same list. */
INLINE int recall(struct task_struct *task, struct known *known)
{
	struct hlist_node *node = READ(READ(task, bpf_storage), list.first);
#pragma clang loop unroll(disable)
	for (int step = 0; node && step < TASK_MAPS_MAX; step++) {
		void *element = (void *)node - OFFSET(struct bpf_local_storage_elem, snode);
		struct bpf_local_storage_data *kept = element + OFFSET(struct bpf_local_storage_elem, sdata);
		if (READ(kept, smap) == (void *)&origins)
			return !read_kernel(known, sizeof *known, &kept->data);
		node = READ(node, next);
	}
	return 0;
}

INLINE int connecting(struct bpf_sock_addr *to, u16 family)
{
	u64 id;
	struct box *box = own(&id);
	if (!box)
		return 1;
	struct task_struct *task = current_task();
	struct known self = {}, *known = recall(task, &self) ? &self : 0;
	if (box->flags & BOX_SENDERS)
		mark(to, id, known);
	if (!(box->flags & BOX_TRACED))
		return 1;
	struct socket rec = {};
	fill(&rec.head, CONNECT, box, id, task);
	if (known)
		rec.head.origin = known->origin;
	rec.family = family;
	rec.protocol = to->type == SOCK_STREAM ? 6 : to->type == SOCK_DGRAM ? 17 : 0;
	rec.peer_port = __builtin_bswap16(to->user_port);
	if (family == AF_INET) {
		rec.peer[0] = to->user_ip4;
	} else {
		rec.peer[0] = to->user_ip6[0];
		rec.peer[1] = to->user_ip6[1];
		rec.peer[2] = to->user_ip6[2];
		rec.peer[3] = to->user_ip6[3];
	}
	emit(box, &rec.head, sizeof rec);
	return 1;
}
SEC("cgroup/connect4") int on_connect4(struct bpf_sock_addr *to) { return connecting(to, AF_INET); }
SEC("cgroup/connect6") int on_connect6(struct bpf_sock_addr *to) { return connecting(to, AF_INET6); }

INLINE void ends(struct socket *rec, struct sock *sk)
{
	rec->family = READ(sk, __sk_common.skc_family);
	rec->protocol = READ(sk, sk_protocol);
	rec->local_port = READ(sk, __sk_common.skc_num);
	rec->peer_port = __builtin_bswap16(READ(sk, __sk_common.skc_dport));
	if (rec->family == AF_INET6) {
		read_kernel(rec->local, 16, &sk->__sk_common.skc_v6_rcv_saddr);
		read_kernel(rec->peer, 16, &sk->__sk_common.skc_v6_daddr);
	} else {
		rec->local[0] = READ(sk, __sk_common.skc_rcv_saddr);
		rec->peer[0] = READ(sk, __sk_common.skc_daddr);
	}
}

/* `listen` happens in the process; what it accepts, in whatever the kernel was doing when the packet came. */
SEC("tp_btf/inet_sock_set_state") int on_state(u64 *ctx)
{
	struct sock *sk = (void *)ctx[0];
	int before = ctx[1], now = ctx[2];
	struct socket rec = {};
	struct box *box;
	u64 id;
	if (now == TCP_LISTEN) {
		box = own(&id);
		if (!box)
			return 0;
		struct task_struct *task = current_task();
		fill(&rec.head, LISTEN, box, id, task);
		struct known *known = task_storage_get(&origins, task, 0, 0);
		if (known)
			rec.head.origin = known->origin;
		struct listener *mine = sk_storage_get(&listeners, sk, 0, STORAGE_CREATE);
		if (mine) {
			mine->box = id;
			mine->start = rec.head.start;
			mine->pid = rec.head.pid;
			mine->inner = rec.head.inner;
			mine->uid = rec.head.uid;
			mine->origin = rec.head.origin;
		}
	} else if (before == TCP_SYN_RECV && now == TCP_ESTABLISHED) {
		struct listener *from = sk_storage_get(&listeners, sk, 0, 0);
		if (!from)
			return 0;
		id = from->box;
		box = map_lookup(&boxes, &id);
		if (!box)
			return 0;
		rec.head.at = boot_ns();
		rec.head.kind = ACCEPT;
		rec.head.box = id;
		rec.head.start = from->start;
		rec.head.pid = from->pid;
		rec.head.inner = from->inner;
		rec.head.uid = from->uid;
		rec.head.origin = from->origin;
	} else {
		return 0;
	}
	if (!(box->flags & BOX_TRACED))
		return 0;
	ends(&rec, sk);
	emit(box, &rec.head, sizeof rec);
	return 0;
}
