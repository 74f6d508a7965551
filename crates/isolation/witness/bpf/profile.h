/* In which profile a process is. It begins in that which the host said of its exec before the agent forked it; what it forks is in
 * the same; and it leaves it by executing a program, for the one that its profile names for that file, or for all others. There
 * is no other way, and nobody inside takes part: a process that runs what it was not named for has lost its profile before the
 * first instruction of that. A door is a program of the host's own that leads to a profile; who may not use it is killed there. */
#pragma once

/* Of a process that has not yet executed the first program of its exec, which changes nothing. */
#define NOT_BEGUN 0x80000000u
/* Where a door leads for those that may not use it. */
#define NOWHERE 0xffffffffu

struct start_key {
	u64 box;
	char exec[EXEC_NAME];
};
struct step_key {
	u64 box, inode;
	u32 device, profile;
};

/* From a sandbox and the name of an exec's cgroup to the profile in which it begins. */
MAP(starts);
/* From a profile and a file (zeros: any other) to the profile in which that runs. */
MAP(steps);

INLINE u32 first_profile(u64 id, struct origin *origin)
{
	struct start_key key = { .box = id };
	__builtin_memcpy(key.exec, origin->exec, EXEC_NAME);
	u32 *profile = map_lookup(&starts, &key);
	return profile ? *profile | NOT_BEGUN : 0;
}

/* Called when what it runs now is remembered: a file only if it is the image's, unchanged, or ours. */
INLINE void step(struct box *box, u64 id, struct task_struct *task, struct executed *rec, int ours)
{
	if (!(box->flags & BOX_PROFILES))
		return;
	struct known *self = task_storage_get(&origins, task, 0, 0);
	if (!self)
		return;
	u32 begun = !(self->profile & NOT_BEGUN), profile = self->profile & ~NOT_BEGUN;
	struct step_key key = { .box = id, .inode = self->inode, .device = self->device, .profile = profile };
	u32 *next = self->inode ? map_lookup(&steps, &key) : 0;
	/* A door as the first program would lead past who confines it. */
	if (next && (*next == NOWHERE || (ours && !begun))) {
		rec->flags |= send_signal(SIGKILL) ? NOT_DOWN | NOT_KILLED : NOT_DOWN;
		return;
	}
	if (!begun) {
		self->profile = profile;
		return;
	}
	if (!profile)
		return;
	if (!next) {
		key.inode = 0;
		key.device = 0;
		next = map_lookup(&steps, &key);
	}
	if (next)
		self->profile = *next;
}
