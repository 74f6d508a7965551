//! Empty: see the package's manifest.
