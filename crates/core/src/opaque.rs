//! A shared value whose content the compiler need not look into.
//!
//! For each handler of a request the compiler proves that the future, and everything that the future holds, can go from
//! one thread to another. For types that hold databases and HTTP clients this proof takes hundreds of times as long as
//! for this type, and the compiler does not remember the answer (docs/decisions/0035).

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A shared value. Clones share it.
pub struct Opaque<T>(Arc<dyn Holds<T>>);

trait Holds<T>: Send + Sync {
    fn held(&self) -> &T;
}

impl<T: Send + Sync> Holds<T> for T {
    fn held(&self) -> &T {
        self
    }
}

impl<T: Send + Sync + 'static> Opaque<T> {
    /// Shares a value.
    pub fn new(value: T) -> Self {
        Self(Arc::new(value))
    }
}

impl<T> Clone for Opaque<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Deref for Opaque<T> {
    type Target = T;

    fn deref(&self) -> &T {
        (*self.0).held()
    }
}

impl<T: fmt::Debug> fmt::Debug for Opaque<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
