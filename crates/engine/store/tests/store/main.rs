//! The store on real databases.

#[cfg(test)]
mod nodes;
#[cfg(test)]
mod postgres;
#[cfg(test)]
mod schema;
#[cfg(test)]
mod sqlite;
#[cfg(test)]
mod support;
