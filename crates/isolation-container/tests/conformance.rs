//! The conformance suite against real containers, and the same on an image's layers.

mod common;

use common::containers;

atoll_isolation::conformance_tests!(containers);
