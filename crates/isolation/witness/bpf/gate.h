/* Which programs may run. The gate is asked when the kernel has made up its mind to run a program and before the first of its
 * instructions: what is refused is killed there, whoever asked and with whatever rights. It goes by the file itself, below
 * the overlay, never by a name that somebody inside gave. */
#pragma once

/* What a rule of the table says; another is that it may run. The file is the host's own, shown read-only to the sandbox. */
#define RULE_DENY 2
#define RULE_OURS 3

struct rule_key {
	u64 box, inode;
	u32 device, pad;
};

MAP(rules);

/* Whether a name is that of a dynamic loader, which as a program runs any other file. A file of the image that has no copy
 * above it still has the name that the image gave it: another would need such a copy. */
INLINE int is_loader(struct file *file)
{
	char name[12] = {};
	read_kernel_text(name, sizeof name, READ(READ(file, f_path.dentry), d_name.name));
	if (name[0] == 'l' && name[1] == 'd')
		return name[2] == '-' || (name[2] == '.' && name[3] == 's' && name[4] == 'o')
			|| (name[2] == '6' && name[3] == '4' && name[4] == '.' && name[5] == 's' && name[6] == 'o');
	return name[0] == 'l' && name[1] == 'i' && name[2] == 'b' && name[3] == 'c' && name[4] == '.' && name[5] == 's'
		&& name[6] == 'o' && !name[7];
}

/* Whether it lies in the directory of the host that the sandbox has instead of an image. */
INLINE int is_bound(struct box *box, struct executed *rec, struct file *file)
{
	struct dentry *root = READ(READ(file, f_path.mnt), mnt_root);
	return rec->flags & READ_ONLY_MOUNT && box->bound_inode && rec->device == box->bound_device
		&& READ(READ(root, d_inode), i_ino) == box->bound_inode;
}

/* Whether a file above the layers is as its template left it. A change of any kind sets this time, to that of the host's clock; nobody
 * can set it to another. */
INLINE int is_templates(struct box *box, struct executed *rec)
{
	return rec->ctime_s && rec->ctime_s * 1000000000 + (rec->ctime_ns & 0x3fffffff) < box->image_until_ns;
}

/* Whether it is a program that the host shows to the sandbox, which nobody inside can write to. */
INLINE int is_ours(u64 id, struct executed *rec)
{
	struct rule_key key = { .box = id, .inode = rec->inode, .device = rec->device };
	u32 *rule = rec->flags & READ_ONLY_MOUNT && !(rec->flags & OVERLAY) ? map_lookup(&rules, &key) : 0;
	return rule && *rule == RULE_OURS;
}

/* Whether a program is the image's, as the image brought it. */
INLINE int is_unchanged(struct box *box, struct executed *rec, struct file *file)
{
	if (rec->flags & OVERLAY)
		return !(rec->flags & UPPER) || is_templates(box, rec);
	return is_bound(box, rec, file);
}

/* Why it may not run; 0 when it may. */
INLINE u32 refusal(struct box *box, u64 id, struct executed *rec, struct file *file, int unchanged)
{
	if (box->flags & BOX_RULES) {
		struct rule_key key = { .box = id, .inode = rec->inode, .device = rec->device };
		u32 *rule = map_lookup(&rules, &key);
		/* What is denied stays so when somebody writes to it. */
		if (rule && *rule == RULE_DENY)
			return BY_RULE;
		if (rule && unchanged)
			return 0;
	}
	if (!(box->flags & (BOX_IMAGE | BOX_LISTED)))
		return 0;
	if (!unchanged)
		return rec->flags & OVERLAY ? NOT_UNCHANGED : NOT_OF_IMAGE;
	if (box->flags & BOX_LISTED)
		return NOT_LISTED;
	return is_loader(file) ? LOADER : 0;
}

/* Kills what may not run. `free` is the sandbox's own first program, which the host started, and what the host shows to it. */
INLINE void gate(struct box *box, u64 id, struct executed *rec, struct file *file, int free, int unchanged)
{
	if (free || !(box->flags & (BOX_IMAGE | BOX_LISTED | BOX_RULES)))
		return;
	u32 why = refusal(box, id, rec, file, unchanged);
	if (!why)
		return;
	rec->flags |= why;
	if (box->flags & BOX_OBSERVED)
		rec->flags |= OBSERVED;
	else if (send_signal(SIGKILL))
		rec->flags |= NOT_KILLED;
}
