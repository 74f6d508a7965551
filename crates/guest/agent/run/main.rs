//! `atoll-run --profile NAME -- COMMAND…`: runs a command in another profile of its sandbox.
//!
//! It has no rights and decides nothing. Each profile has a *door*: this same program under another inode, which the
//! host's kernel knows. A process asks for the profile by executing its door. The kernel answers at once: a process
//! that may enter is in the profile before the door's first instruction, and a process that may not is killed there. So
//! all that is left to do here is to find the door, and behind it the command. It stands alone, without a library: a
//! copy is made for each profile, and it must start in any root file system.
#![no_std]
#![no_main]
#![no_builtins]

use core::arch::{asm, global_asm};

const DOORS: &[u8] = b"/.atoll/profiles/";
const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const USAGE: &[u8] = b"atoll-run: usage: atoll-run --profile NAME -- COMMAND [ARGUMENT...]\n";
/// Longest name of a profile, bytes.
const NAME_MAX_BYTES: usize = 128;
/// Longest path of a command, bytes.
const PATH_MAX_BYTES: usize = 4096;

const WRITE: usize = 1;
const EXECVE: usize = 59;
const EXIT_GROUP: usize = 231;
const NOT_FOUND: isize = -2;
const NOT_A_DIRECTORY: isize = -20;

/// How a command ends that was not run, as `env` has it.
const FAILED: usize = 125;
const NOT_EXECUTABLE: usize = 126;
const COMMAND_NOT_FOUND: usize = 127;

/// A string that ends with a zero.
type Text = *const u8;

// The kernel puts the number of arguments at the top of the stack, then the arguments, a zero, the environment, a zero.
global_asm!(".globl _start", "_start:", "mov rdi, rsp", "and rsp, -16", "call {main}", "ud2", main = sym main);

extern "C" fn main(stack: *mut usize) -> ! {
    // SAFETY: the kernel put them there, see above.
    let (count, argv) = unsafe { (*stack, stack.add(1).cast::<Text>()) };
    // SAFETY: the environment is behind the zero that ends the arguments.
    let envp = unsafe { argv.add(count + 1) };
    let argument = |at: usize| {
        // SAFETY: one of the arguments.
        if at < count { Some(bytes(unsafe { *argv.add(at) })) } else { None }
    };
    let (name, mut command) = match argument(1) {
        Some(b"--profile") => (argument(2), 3),
        Some(b"--") => (None, 1),
        Some(word) => match word.strip_prefix(b"--profile=") {
            Some(name) => (Some(name), 2),
            None => fail(FAILED, &[USAGE]),
        },
        None => fail(FAILED, &[USAGE]),
    };
    if argument(command) == Some(b"--") {
        command += 1;
    }
    if argument(command).is_none_or(<[u8]>::is_empty) {
        fail(FAILED, &[USAGE]);
    }
    match name {
        // SAFETY: there are two arguments before the command.
        Some(name) => unsafe { ask(name, argv.add(command - 2), envp) },
        // SAFETY: the command, and what follows it.
        None => unsafe { run(argv.add(command), envp) },
    }
}

/// Goes through a door, with the command behind two arguments that are put there.
///
/// # Safety
/// `argv` and `envp` are arrays that end with a zero; the first has two places before the command.
unsafe fn ask(name: &[u8], argv: *mut Text, envp: *const Text) -> ! {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if name.is_empty() || name.len() > NAME_MAX_BYTES || name[0] == b'.' || !name.iter().all(plain) {
        fail(FAILED, &[b"atoll-run: '", name, b"' is no name of a profile\n"]);
    }
    let mut path = [0; DOORS.len() + NAME_MAX_BYTES + 1];
    join(&mut path, &[DOORS, name]);
    // SAFETY: places of the array, and strings that end with a zero and live as long as the program.
    unsafe {
        *argv = c"atoll-run".as_ptr().cast();
        *argv.add(1) = c"--".as_ptr().cast();
    }
    // SAFETY: as this function's contract says.
    match unsafe { execute(path.as_ptr(), argv, envp) } {
        NOT_FOUND => fail(FAILED, &[b"atoll-run: this sandbox has no profile '", name, b"' that can be asked for\n"]),
        _ => fail(FAILED, &[b"atoll-run: cannot run the door to the profile '", name, b"'\n"]),
    }
}

/// Runs the command, which is looked for in `PATH` when it has no slash.
///
/// # Safety
/// `argv` and `envp` are arrays that end with a zero, and the first is not empty.
unsafe fn run(argv: *mut Text, envp: *const Text) -> ! {
    // SAFETY: the array is not empty.
    let command = bytes(unsafe { *argv });
    let mut verdict = NOT_FOUND;
    if command.contains(&b'/') {
        // SAFETY: as this function's contract says.
        verdict = unsafe { execute(*argv, argv, envp) };
    } else {
        // SAFETY: as this function's contract says.
        let directories = unsafe { search_path(envp) }.unwrap_or(DEFAULT_PATH);
        for directory in directories.split(|byte| *byte == b':') {
            let mut path = [0; PATH_MAX_BYTES];
            let directory = if directory.is_empty() { b"." } else { directory };
            if !join(&mut path, &[directory, b"/", command]) {
                continue;
            }
            // SAFETY: as this function's contract says.
            match unsafe { execute(path.as_ptr(), argv, envp) } {
                NOT_FOUND | NOT_A_DIRECTORY => {}
                other => verdict = other,
            }
        }
    }
    match verdict {
        NOT_FOUND | NOT_A_DIRECTORY => fail(COMMAND_NOT_FOUND, &[b"atoll-run: ", command, b": not found\n"]),
        _ => fail(NOT_EXECUTABLE, &[b"atoll-run: ", command, b": cannot be executed\n"]),
    }
}

/// # Safety
/// `envp` is an array of strings that ends with a zero.
unsafe fn search_path(mut envp: *const Text) -> Option<&'static [u8]> {
    loop {
        // SAFETY: not behind the zero that ends the array.
        let variable = unsafe { *envp };
        if variable.is_null() {
            return None;
        }
        if let Some(value) = bytes(variable).strip_prefix(b"PATH=") {
            return Some(value);
        }
        // SAFETY: that was not the end.
        envp = unsafe { envp.add(1) };
    }
}

/// A string of the kernel's without its zero.
fn bytes(text: Text) -> &'static [u8] {
    let mut length = 0;
    // SAFETY: arguments and variables end with a zero, and stay where they are.
    while unsafe { *text.add(length) } != 0 {
        length += 1;
    }
    // SAFETY: so many bytes are there.
    unsafe { core::slice::from_raw_parts(text, length) }
}

/// Puts parts one after another, with a zero behind them; `false` when there is no room.
fn join(to: &mut [u8], parts: &[&[u8]]) -> bool {
    let mut at = 0;
    for byte in parts.iter().flat_map(|part| part.iter()).chain(&[0]) {
        let Some(place) = to.get_mut(at) else { return false };
        *place = *byte;
        at += 1;
    }
    true
}

/// Returns only when it could not.
///
/// # Safety
/// A string that ends with a zero, and two arrays of such that do.
unsafe fn execute(path: Text, argv: *const Text, envp: *const Text) -> isize {
    // SAFETY: as this function's contract says.
    unsafe { call(EXECVE, path as usize, argv as usize, envp as usize) }
}

fn fail(code: usize, words: &[&[u8]]) -> ! {
    for word in words {
        // SAFETY: so many bytes are there. A failed write is ignored: there is no other place to report to.
        unsafe { call(WRITE, 2, word.as_ptr() as usize, word.len()) };
    }
    loop {
        // SAFETY: ends the program.
        unsafe { call(EXIT_GROUP, code, 0, 0) };
    }
}

/// # Safety
/// The conditions of the call that is made.
unsafe fn call(number: usize, first: usize, second: usize, third: usize) -> isize {
    let result;
    // SAFETY: the kernel's convention; it leaves every other register and the stack alone.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") first, in("rsi") second,
            in("rdx") third, lateout("rcx") _, lateout("r11") _);
    }
    result
}

/// The compiler asks for these by name.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// # Safety
/// There are `length` bytes at both places.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, length: usize) -> i32 {
    for at in 0..length {
        // SAFETY: as this function's contract says.
        let (left, right) = unsafe { (*left.add(at), *right.add(at)) };
        if left != right {
            return i32::from(left) - i32::from(right);
        }
    }
    0
}

/// # Safety
/// There are `length` bytes at the place.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, length: usize) -> *mut u8 {
    for at in 0..length {
        // SAFETY: as this function's contract says.
        unsafe { *to.add(at) = byte as u8 };
    }
    to
}

/// # Safety
/// There are `length` bytes at both places, and the places do not overlap.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
    for at in 0..length {
        // SAFETY: as this function's contract says.
        unsafe { *to.add(at) = *from.add(at) };
    }
    to
}

#[panic_handler]
fn panicked(_: &core::panic::PanicInfo<'_>) -> ! {
    fail(FAILED, &[b"atoll-run: failed\n"])
}
