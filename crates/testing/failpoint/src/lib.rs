//! Places where a test can end the process or inject an error.
//!
//! They are in every build with debug assertions, and do nothing until a test arms them by name, so that the
//! program under test and the program that developers build are the same. A release build has none: the
//! condition is a constant there, and the code that it guards is not compiled into the program.

#[doc(hidden)]
pub use fail;
/// Arms a fail point with an action of the crate `fail`, or with a function.
pub use fail::{cfg, cfg_callback};

/// A place with a name, as the crate `fail` has them: `fail_point!("engine.create.journalled")`.
#[macro_export]
macro_rules! fail_point {
    ($($argument:tt)*) => {
        if cfg!(debug_assertions) {
            $crate::fail::fail_point!($($argument)*);
        }
    };
}
