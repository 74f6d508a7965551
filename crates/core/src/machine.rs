//! What the memory of a virtual machine depends on, so that it can be decided on which host the machine goes on with it.
//!
//! Memory that was written out is the state of a kernel and of devices. It can be read only by the same VMM that makes the
//! same machine, and its kernel has adapted to the processor and to the image that it saw. A host that differs in any of that
//! must not use it: the machine would not fail at once, but at some later instruction.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::error::shorten;
use crate::placement::image_mark;
use crate::spec::Accelerator;

/// Clocks that differ by less than this part are taken for the same: a host measures its clock no better than that.
const CLOCK_PART: u64 = 200;
/// Features that a text names, of those that a processor lacks.
const NAMED_MAX_COUNT: usize = 3;

/// What a host runs machines with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Platform {
    /// The program that runs them, with its version, in its own words.
    pub vmm: String,
    /// Digest of what every machine is made of, whatever its size: its type, its devices, the form of a saved one.
    pub machine: String,
    /// Digest of the guest's kernel and its modules.
    pub kernel: String,
    /// Digest of what the guest's kernel starts with: the agent, and its version.
    pub agent: String,
    /// What executes the machines.
    pub accelerator: Accelerator,
    /// The frequency of the processor's time stamp counter, kHz, as far as the host can measure it.
    pub clock_khz: u64,
    /// The processor that machines see; `None` where they are emulated and see the same everywhere.
    pub processor: Option<Processor>,
}

/// A processor, as machines see it that it executes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Processor {
    /// Its vendor, family, model and stepping, as one text.
    pub model: String,
    /// Its features, by the names that Linux gives them.
    pub features: BTreeSet<String>,
}

/// What the memory of one machine needs of the host that uses it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryNeeds {
    /// What the host runs machines with that wrote it.
    pub platform: Platform,
    /// Memory of the machine, with what its kernel takes, MiB.
    pub memory_mib: u64,
    /// Its processors.
    pub cpus: u32,
    /// Digest of the file with its image: its kernel remembers where in that file things are.
    pub image: String,
}

impl Platform {
    /// Why memory that was written by this platform cannot be used on `host`; `None` when it can. The text continues "its
    /// memory cannot be used here: ".
    #[must_use]
    pub fn obstacle(&self, host: &Self) -> Option<String> {
        if self.vmm != host.vmm {
            let (was, is) = (shorten(&self.vmm), shorten(&host.vmm));
            return Some(format!("it was written by '{was}', and this host has '{is}'"));
        }
        if self.accelerator != host.accelerator {
            let (was, is) = (self.accelerator, host.accelerator);
            return Some(format!("its machine was executed by {was}, and this host has {is}"));
        }
        let same = [
            (&self.kernel, &host.kernel, "with another guest kernel"),
            (&self.agent, &host.agent, "by another version of Atoll"),
            (&self.machine, &host.machine, "with other devices"),
        ];
        if let Some((_, _, how)) = same.into_iter().find(|(was, is, _)| was != is) {
            return Some(format!("its machine was made {how}"));
        }
        if let Some(why) = lacks(self.processor.as_ref(), host.processor.as_ref()) {
            return Some(why);
        }
        if self.clock_khz.abs_diff(host.clock_khz) > host.clock_khz / CLOCK_PART {
            let (was, is) = (self.clock_khz, host.clock_khz);
            return Some(format!("the processor's clock had {was} kHz, and this host's has {is}"));
        }
        None
    }

    /// The form of this platform in [`crate::node::NodeFacts::machines`]: a number that follows from everything but the
    /// clock. Hosts of the same number can use each other's memory, unless their clocks differ; a few others can, too.
    #[must_use]
    pub fn mark(&self) -> u64 {
        let Self { vmm, machine, kernel, agent, accelerator, clock_khz: _, processor } = self;
        image_mark(&format!("{vmm}\n{machine}\n{kernel}\n{agent}\n{accelerator}\n{processor:?}"))
    }
}

/// What the second processor lacks of the first.
fn lacks(was: Option<&Processor>, is: Option<&Processor>) -> Option<String> {
    let (was, is) = match (was, is) {
        (Some(was), Some(is)) => (was, is),
        (None, None) => return None,
        (None, Some(_)) | (Some(_), None) => {
            return Some("its machine saw another kind of processor".to_owned());
        }
    };
    if was.model != is.model {
        return Some("its machine saw another model of processor".to_owned());
    }
    let missing: Vec<String> =
        was.features.difference(&is.features).take(NAMED_MAX_COUNT).map(|name| shorten(name)).collect();
    (!missing.is_empty()).then(|| format!("this host's processor lacks {}", missing.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processor(features: &[&str]) -> Processor {
        Processor {
            model: "GenuineIntel 6 85 7".to_owned(),
            features: features.iter().map(|&name| name.to_owned()).collect(),
        }
    }

    fn platform() -> Platform {
        Platform {
            vmm: "QEMU emulator version 10.0.2".to_owned(),
            machine: "machine".to_owned(),
            kernel: "kernel".to_owned(),
            agent: "agent".to_owned(),
            accelerator: Accelerator::Kvm,
            clock_khz: 2_600_000,
            processor: Some(processor(&["fpu", "avx2"])),
        }
    }

    #[test]
    fn memory_goes_where_everything_is_the_same() {
        assert_eq!(platform().obstacle(&platform()), None);
        let emulated = Platform { accelerator: Accelerator::Emulated, processor: None, ..platform() };
        assert_eq!(emulated.obstacle(&emulated), None);
    }

    #[test]
    fn what_differs_is_named() {
        let text = |text: &str| text.to_owned();
        for (other, named) in [
            (Platform { vmm: text("QEMU emulator version 10.1.0"), ..platform() }, "10.1.0"),
            (Platform { accelerator: Accelerator::Emulated, processor: None, ..platform() }, "emulated"),
            (Platform { kernel: text("another"), ..platform() }, "guest kernel"),
            (Platform { agent: text("another"), ..platform() }, "version of Atoll"),
            (Platform { machine: text("another"), ..platform() }, "devices"),
            (Platform { clock_khz: 2_000_000, ..platform() }, "2000000"),
            (Platform { processor: None, ..platform() }, "kind of processor"),
            (
                Platform {
                    processor: Some(Processor { model: text("another"), ..processor(&["fpu", "avx2"]) }),
                    ..platform()
                },
                "model of processor",
            ),
            (Platform { processor: Some(processor(&["fpu"])), ..platform() }, "lacks avx2"),
        ] {
            let why = platform().obstacle(&other).unwrap_or_default();
            assert!(why.contains(named), "{named}: {why:?}");
        }
    }

    /// A program that found a feature uses it; one that did not find another never asks for it again.
    #[test]
    fn a_processor_may_have_more_and_not_less() {
        let more = Platform { processor: Some(processor(&["fpu", "avx2", "avx512f"])), ..platform() };
        assert_eq!(platform().obstacle(&more), None);
        assert!(more.obstacle(&platform()).is_some_and(|why| why.contains("avx512f")));
    }

    #[test]
    fn a_clock_is_measured_inexactly() {
        let near = Platform { clock_khz: 2_605_000, ..platform() };
        assert_eq!((platform().obstacle(&near), near.obstacle(&platform())), (None, None));
        assert_eq!(near.mark(), platform().mark());
    }

    #[test]
    fn a_mark_follows_from_everything_else() {
        let text = |text: &str| text.to_owned();
        for other in [
            Platform { vmm: text("another"), ..platform() },
            Platform { machine: text("another"), ..platform() },
            Platform { kernel: text("another"), ..platform() },
            Platform { agent: text("another"), ..platform() },
            Platform { accelerator: Accelerator::Emulated, ..platform() },
            Platform { processor: Some(processor(&["fpu"])), ..platform() },
        ] {
            assert_ne!(other.mark(), platform().mark(), "{other:?}");
        }
    }

    #[test]
    fn needs_say_the_same_when_they_come_back_and_nothing_else_is_read() {
        let needs = MemoryNeeds { platform: platform(), memory_mib: 192, cpus: 1, image: "image".to_owned() };
        let text = serde_json::to_string(&needs).unwrap();
        assert_eq!(serde_json::from_str::<MemoryNeeds>(&text).unwrap(), needs);
        let more = text.replacen("{", "{\"path\":\"/etc/shadow\",", 1);
        serde_json::from_str::<MemoryNeeds>(&more).unwrap_err();
    }
}
