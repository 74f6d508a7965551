/* Who makes a connection: by the program, the profile and the exec of its process. The gateway, which serves it, reads the mark of the socket that it accepts: the mark of the one that
 * connects is copied to it by the kernel of the host, where the network namespace is told so. Nobody inside may set one. */
#pragma once

#define SOL_SOCKET 1
#define SO_MARK 36

/* From the file that a process runs, or (without an inode) from the number of its profile, to the mark of its connections, which tells
 * which rules mean it. */
MAP(senders);
/* From a sandbox and the name of an exec's cgroup to the mark of its connections. */
MAP(exec_marks);

/* Remembers which program a process runs. Only one that is the image's, unchanged, is ever somebody. */
INLINE void remember(struct box *box, struct task_struct *task, struct executed *rec, int unchanged)
{
	struct known *self = task_storage_get(&origins, task, 0, 0);
	/* One that ran before it was watched. What the agent forks gets its own when it is forked. */
	if (!self && inner_pid(task, box->pid_level) != 1) {
		struct known fresh = {};
		self = task_storage_get(&origins, task, &fresh, STORAGE_CREATE);
	}
	if (!self)
		return;
	self->inode = unchanged ? rec->inode : 0;
	self->device = unchanged ? rec->device : 0;
}

/* Marks a socket with who connects it, or with nothing: it may have been another's before. */
INLINE void mark(struct bpf_sock_addr *to, u64 id, struct known *self)
{
	u32 value = 0;
	if (self) {
		struct rule_key key = { .box = id, .inode = self->inode, .device = self->device };
		u32 *found = self->inode ? map_lookup(&senders, &key) : 0;
		if (found)
			value = *found;
		key.inode = 0;
		key.device = self->profile;
		found = self->profile ? map_lookup(&senders, &key) : 0;
		if (found)
			value |= *found;
		struct start_key exec = { .box = id };
		__builtin_memcpy(exec.exec, self->origin.exec, EXEC_NAME);
		found = exec.exec[0] ? map_lookup(&exec_marks, &exec) : 0;
		if (found)
			value |= *found;
	}
	set_option(to, SOL_SOCKET, SO_MARK, &value, sizeof value);
}
