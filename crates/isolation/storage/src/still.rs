//! Holds an installation still, whose server does not run, while its data directory is read.
//!
//! Its sandboxes may run on without it, and write to their disks, to volumes, and thereby to the pool. So first they stand
//! still, then the volumes, then the pool: everything written is in its file, and nothing changes there. When the process
//! that holds it is killed, all that stays as it is until a server starts, or the installation is ended.

use std::os::fd::AsFd as _;
use std::path::Path;

use atoll_isolation::IsolationError;
use atoll_isolation_host::Halt;

use crate::volumes::{freeze_volumes_of, thaw_volumes_of};
use crate::{Frozen, pool};

/// Everything of an installation stands still until this is dropped.
#[derive(Debug)]
pub struct Still {
    // In the order in which they have to go on.
    _pool: Option<Frozen>,
    _volumes: Vec<Frozen>,
    _sandboxes: Option<Held>,
}

#[derive(Debug)]
struct Held(Halt);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.hold(false);
    }
}

impl Still {
    /// Makes everything of an installation stand still. No other process may have its data directory open.
    ///
    /// # Errors
    /// [`IsolationError`]; everything goes on then.
    pub fn hold(instance: &str, data_dir: &Path) -> Result<Self, IsolationError> {
        // A process that held it still before may have been killed.
        thaw_volumes_of(instance, Some(data_dir))?;
        let halt = Halt::open(instance)?;
        // Sandboxes that stand still already, for want of room, wait for a server: they are not let go on here.
        let sandboxes = (!halt.is_held()).then(|| Held(halt));
        if let Some(Held(halt)) = &sandboxes {
            halt.hold(true);
        }
        let volumes = freeze_volumes_of(instance, data_dir)?;
        let pool = pool::in_use(&data_dir.join("storage"))?;
        let pool = pool.map(|mount| Frozen::freeze(mount.as_fd())).transpose()?;
        Ok(Self { _pool: pool, _volumes: volumes, _sandboxes: sandboxes })
    }
}
