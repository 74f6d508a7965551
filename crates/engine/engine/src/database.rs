//! The database as callers see it: whether what they change can be stored, and whether what is in it can be read.

use atoll_isolation::{Check, Status};
use atoll_store::Unwritable;

use crate::boxed;
use crate::engine::Engine;

/// Name of the check.
const CHECK: &str = "database";

impl Engine {
    /// Whether what a request changes could be stored at this moment; [`Self::may_serve`] says whether it is answered.
    /// While the host's disk is full it could, even if what was written last found no room: what removes something
    /// gets through with what is kept in reserve for that.
    #[boxed]
    pub async fn can_store(&self) -> bool {
        match self.inner.store.unwritable().await {
            None => true,
            Some(Unwritable::DiskFull) => self.is_disk_full(),
            Some(_) => false,
        }
    }

    pub(crate) async fn check_database(&self) -> Check {
        match self.inner.store.unwritable().await {
            None => self.check_rows(),
            Some(why) => {
                let detail = format!("{why}: nothing that clients change can be stored");
                Check::new(CHECK, Status::Missing, detail).hint(remedy(why))
            }
        }
    }

    /// What the database holds that cannot be read.
    fn check_rows(&self) -> Check {
        /// How many rows are named.
        const NAMED_MAX_COUNT: usize = 20;
        let unreadable = self.inner.store.unreadable();
        if unreadable.is_empty() {
            return Check::new(CHECK, Status::Ok, "every row that was listed can be read");
        }
        let rows = unreadable.remembered();
        let named = rows.iter().take(NAMED_MAX_COUNT);
        let named: Vec<_> = named.map(|row| format!("{} {} ({})", row.table, row.id, row.column)).collect();
        let more = if rows.len() > named.len() || unreadable.overflowed() { ", …" } else { "" };
        let at_least = if unreadable.overflowed() { "at least " } else { "" };
        let (count, named) = (rows.len(), named.join(", "));
        let detail = format!("{at_least}{count} rows cannot be read and are left out: {named}{more}");
        Check::new(CHECK, Status::Limited, detail).hint(
            "a newer version may be able to read them; otherwise restore a backup, or correct or delete the rows while the \
             server is stopped",
        )
    }
}

/// What an administrator does about it.
pub(crate) const fn remedy(why: Unwritable) -> &'static str {
    match why {
        Unwritable::Disconnected => "the server's log says why; start the server again",
        Unwritable::DiskFull => {
            "free space on the file system of the database, which the server's log names; changes work again by themselves"
        }
        Unwritable::ReadOnly => {
            "the server's log names the database: its address must lead to the primary of PostgreSQL, and a file must be \
             on a file system that can be written; changes work again by themselves"
        }
        Unwritable::DiskError => {
            "the server's log names the database, the kernel's log its disk; repair it, or restore a backup on another"
        }
        Unwritable::Damaged => "stop the server and restore a backup",
    }
}
