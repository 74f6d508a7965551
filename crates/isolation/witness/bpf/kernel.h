/* What of the kernel the programs use: the fields they read, nothing else. Where a field lies is written into the
 * instructions when they are loaded (CO-RE), from the running kernel's own description of its types. */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static __attribute__((always_inline)) inline
#define NOINLINE static __attribute__((noinline))

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct super_block {
	u32 s_dev;
	unsigned long s_magic;
};
struct inode {
	struct super_block *i_sb;
	unsigned long i_ino;
	long long i_size;
	/* Since 6.11; before it lay elsewhere, and digests are cached less. */
	long long i_ctime_sec;
	u32 i_ctime_nsec;
	u32 i_nlink;
};
struct qstr {
	const u8 *name;
};
struct dentry {
	struct dentry *d_parent;
	struct qstr d_name;
	struct inode *d_inode;
};
struct vfsmount {
	struct dentry *mnt_root;
	int mnt_flags;
};
struct mount {
	struct mount *mnt_parent;
	struct dentry *mnt_mountpoint;
	struct vfsmount mnt;
};
struct path {
	struct vfsmount *mnt;
	struct dentry *dentry;
};
struct file {
	struct path f_path;
	struct inode *f_inode;
};
struct fs_struct {
	struct path pwd;
};
struct linux_binprm {
	struct file *file;
	int argc;
};
struct mm_struct {
	unsigned long arg_start, arg_end;
};
struct upid {
	int nr;
};
struct pid {
	u32 level;
	struct upid numbers[1];
};
typedef struct {
	int counter;
} atomic_t;
struct signal_struct {
	atomic_t live;
	int group_exit_code;
	u64 sum_sched_runtime;
	unsigned long maxrss;
};
struct sched_entity {
	u64 sum_exec_runtime;
};
struct kernfs_node {
	const char *name;
};
struct cgroup {
	struct kernfs_node *kn;
};
struct css_set {
	struct cgroup *dfl_cgrp;
};
/* What a map keeps with a task: a list of one element for each such map. */
struct hlist_node {
	struct hlist_node *next;
};
struct hlist_head {
	struct hlist_node *first;
};
struct bpf_local_storage {
	struct hlist_head list;
};
struct bpf_local_storage_data {
	/* The map whose value this is; it begins with the `struct bpf_map`. */
	void *smap;
	u8 data[1];
};
struct bpf_local_storage_elem {
	struct hlist_node snode;
	struct bpf_local_storage_data sdata;
};
struct task_struct {
	struct bpf_local_storage *bpf_storage;
	s32 pid, tgid, exit_code;
	struct task_struct *group_leader, *real_parent;
	u64 start_boottime;
	struct mm_struct *mm;
	struct fs_struct *fs;
	struct signal_struct *signal;
	struct pid *thread_pid;
	struct sched_entity se;
	struct css_set *cgroups;
};
struct in6_addr_words {
	u32 words[4];
};
struct sock_common {
	u32 skc_daddr, skc_rcv_saddr;
	u16 skc_dport, skc_num;
	u16 skc_family;
	struct in6_addr_words skc_v6_daddr, skc_v6_rcv_saddr;
};
struct sock {
	struct sock_common __sk_common;
	u16 sk_protocol;
};

#pragma clang attribute pop

/* Part of the kernel's interface to programs: no relocation. */
struct bpf_sock_addr {
	u32 user_family, user_ip4, user_ip6[4], user_port, family, type, protocol;
};

/* Helpers, by their number in the kernel's interface. */
static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static long (*set_option)(void *ctx, int level, int option, void *value, int size) = (void *)49;
static long (*send_signal)(u32 number) = (void *)109;
static void *(*sk_storage_get)(void *map, void *sk, void *value, u64 flags) = (void *)107;
static u64 (*current_pid_tgid)(void) = (void *)14;
static u64 (*current_uid_gid)(void) = (void *)15;
static long (*read_user)(void *to, u32 size, const void *from) = (void *)112;
static long (*read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static long (*read_kernel_text)(void *to, u32 size, const void *from) = (void *)115;
static u64 (*ancestor_cgroup)(int level) = (void *)123;
static u64 (*boot_ns)(void) = (void *)125;
static long (*ring_output)(void *ring, void *data, u64 size, u64 flags) = (void *)130;
static u64 (*ring_query)(void *ring, u64 what) = (void *)134;
static void *(*task_storage_get)(void *map, void *task, void *value, u64 flags) = (void *)156;
static struct task_struct *(*current_task)(void) = (void *)158;

/* Reads one field behind a pointer that may lead nowhere; 0 then. */
#define READ(pointer, field) ({ \
	__typeof__(pointer) from__ = (pointer); \
	__typeof__(from__->field) value__ = 0; \
	read_kernel(&value__, sizeof value__, &from__->field); \
	value__; })
#define OFFSET(type, field) __builtin_preserve_field_info(((type *)0)->field, 0)
#define EXISTS(type, field) __builtin_preserve_field_info(((type *)0)->field, 2)
