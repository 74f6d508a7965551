//! The programs, fitted to the running kernel: with its own offsets of fields in place of those that they were compiled
//! with.
//!
//! Fitting takes a tenth of a second of computing, most of it reading the kernel's description of its types. Every
//! server that starts on this kernel comes to the same, so the first one keeps what it found:
//!
//! ```text
//! /run/atoll/fitted-<32 digits of the programs, the kernel and this boot>     JSON
//! ```
//!
//! The file is read and written only where no user but the server's can change it. The kernel checks what is loaded from
//! it as it checks every program; when it refuses, the programs are fitted anew.

use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use aya_obj::Object;
use aya_obj::btf::{Btf, BtfKind};
use aya_obj::generated::bpf_insn;
use serde::{Deserialize, Serialize};

use crate::level::{Missing, chain};
use crate::object::{Hook, MAPS, Maps, OBJECT, PROGRAMS, WAKE_ABOVE_BYTES};
use crate::overlay;

/// What the names of kept files begin with.
const PREFIX: &str = "fitted-";
/// Largest file that is read, bytes.
const FILE_MAX_BYTES: u64 = 4 << 20;
/// The operation that loads a number of 64 bits, which takes two instructions.
const LOAD_64: u8 = 0x18;
/// Such a number is a map: the register that it comes from says so.
const MAP: u8 = 1;
/// Descriptors that stand for the maps while the programs are fitted: none that a process has.
const FIRST_PLACEHOLDER: i32 = 1 << 30;

/// The programs and what they are told about overlayfs.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fitted {
    offsets: Option<overlay::Offsets>,
    /// By name.
    pub(crate) programs: BTreeMap<String, FittedProgram>,
}

/// A program. Its instructions name a map by its place in [`MAPS`].
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FittedProgram {
    /// The type that the tracepoint's arguments have; 0 for what is no tracepoint.
    pub(crate) attach_btf_id: u32,
    instructions: Vec<Instruction>,
}

/// Operation, registers, offset, number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Instruction(u8, u8, i16, i32);

impl Fitted {
    /// Fits the programs to this kernel.
    pub(crate) fn to_this_kernel() -> Result<Self, Missing> {
        let kernel = Btf::from_sys_fs().map_err(|error| Missing::NoTypes(chain(&error)))?;
        let unfit = |error: &dyn std::error::Error| Missing::Unfit(chain(error));
        let mut object = Object::parse(OBJECT).map_err(|error| unfit(&error))?;
        object.relocate_btf(&kernel).map_err(|error| unfit(&error))?;
        let known = object.maps.clone();
        let found = MAPS
            .iter()
            .zip(FIRST_PLACEHOLDER..)
            .filter_map(|(name, fd)| Some((*name, fd, known.get(*name)?)));
        let text: HashSet<usize> = object
            .functions
            .values()
            .filter(|function| !function.name.starts_with("on_"))
            .map(|function| function.section_index.0)
            .collect();
        object.relocate_maps(found, &text).map_err(|error| unfit(&error))?;
        object.relocate_calls(&text).map_err(|error| unfit(&error))?;
        let programs = PROGRAMS
            .into_iter()
            .map(|(name, hook)| Ok((name.to_owned(), FittedProgram::of(&kernel, &object, name, hook)?)))
            .collect::<Result<_, Missing>>()?;
        Ok(Self { offsets: overlay::offsets(), programs })
    }

    /// The programs' `struct config`.
    pub(crate) fn config(&self) -> Vec<u8> {
        overlay::config(self.offsets, WAKE_ABOVE_BYTES)
    }
}

impl FittedProgram {
    fn of(kernel: &Btf, object: &Object, name: &str, hook: Hook) -> Result<Self, Missing> {
        let program =
            object.programs.get(name).ok_or_else(|| Missing::Unfit(format!("no program {name}")))?;
        let function = object
            .functions
            .get(&program.function_key())
            .ok_or_else(|| Missing::Unfit(format!("no instructions of {name}")))?;
        let attach_btf_id = match hook {
            Hook::Cgroup(_) => 0,
            Hook::Tracepoint(event) => kernel
                .id_by_type_name_kind(&format!("btf_trace_{event}"), BtfKind::Typedef)
                .map_err(|_absent| Missing::Unfit(format!("this kernel has no tracepoint {event}")))?,
        };
        let instructions = function.instructions.iter().map(Instruction::with_placeholder).collect();
        Ok(Self { attach_btf_id, instructions })
    }

    /// The instructions as they lie in memory, over these maps; `None` when one names no map.
    pub(crate) fn over(&self, maps: &Maps) -> Option<Vec<u8>> {
        let fds: Vec<i32> = maps.iter().map(|(_, fd)| fd.as_raw_fd()).collect();
        let mut bytes = Vec::with_capacity(self.instructions.len() * 8);
        for instruction in &self.instructions {
            bytes.extend(instruction.over(&fds)?);
        }
        Some(bytes)
    }
}

impl Instruction {
    /// An instruction of the object, in which a map is a placeholder.
    fn with_placeholder(from: &bpf_insn) -> Self {
        let registers = if cfg!(target_endian = "little") {
            from.dst_reg() | from.src_reg() << 4
        } else {
            from.dst_reg() << 4 | from.src_reg()
        };
        let is_map = from.code == LOAD_64 && from.src_reg() == MAP;
        let number = if is_map { from.imm - FIRST_PLACEHOLDER } else { from.imm };
        Self(from.code, registers, from.off, number)
    }

    fn names_map(self) -> bool {
        let from = if cfg!(target_endian = "little") { self.1 >> 4 } else { self.1 & 15 };
        self.0 == LOAD_64 && from == MAP
    }

    fn over(self, fds: &[i32]) -> Option<[u8; 8]> {
        let Self(code, registers, offset, number) = self;
        let number = if self.names_map() { *fds.get(usize::try_from(number).ok()?)? } else { number };
        let [o0, o1] = offset.to_ne_bytes();
        let [n0, n1, n2, n3] = number.to_ne_bytes();
        Some([code, registers, o0, o1, n0, n1, n2, n3])
    }
}

/// The file for this boot of this kernel.
#[derive(Debug)]
pub(crate) struct Cache(PathBuf);

impl Cache {
    /// Its place in `dir`; `None` when other users can write there, and when the kernel does not say which it is.
    pub(crate) fn below(dir: &Path) -> Option<Self> {
        own(&std::fs::symlink_metadata(dir).ok()?).then_some(())?;
        let mut which = blake3::Hasher::new();
        which.update(OBJECT);
        for path in ["/sys/kernel/notes", "/proc/sys/kernel/random/boot_id"] {
            which.update(&std::fs::read(path).ok()?);
        }
        Some(Self(dir.join(format!("{PREFIX}{}", &which.finalize().to_hex()[..32]))))
    }

    /// What an earlier server found.
    pub(crate) fn read(&self) -> Option<Fitted> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = std::fs::File::options().read(true).custom_flags(flags).open(&self.0).ok()?;
        let about = file.metadata().ok()?;
        (about.is_file() && own(&about) && about.len() <= FILE_MAX_BYTES).then_some(())?;
        serde_json::from_reader(std::io::BufReader::new(file)).ok()
    }

    /// Keeps it for the next server. Nothing but time depends on it.
    pub(crate) fn keep(&self, fitted: &Fitted) {
        // The module of overlayfs may be loaded yet.
        if fitted.offsets.is_none() {
            return;
        }
        if let Err(error) = self.write(fitted) {
            tracing::debug!(%error, "the fitted programs are not kept");
        }
    }

    fn write(&self, fitted: &Fitted) -> std::io::Result<()> {
        let new = self.0.with_extension(std::process::id().to_string());
        let mut file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&new)?;
        let written =
            file.write_all(&serde_json::to_vec(fitted)?).and_then(|()| std::fs::rename(&new, &self.0));
        if written.is_err() {
            drop(std::fs::remove_file(&new));
        }
        written
    }
}

/// Whether a file or directory is this process's user's, and no other can write to it.
fn own(about: &std::fs::Metadata) -> bool {
    about.uid() == rustix::process::geteuid().as_raw() && about.mode() & 0o022 == 0
}
