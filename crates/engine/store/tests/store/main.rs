//! The store on real databases.

#[cfg(test)]
mod kept;
#[cfg(test)]
mod nodes;
#[cfg(test)]
mod postgres;
#[cfg(test)]
mod races;
#[cfg(test)]
mod schema;
#[cfg(test)]
mod sqlite;
#[cfg(test)]
mod support;
#[cfg(test)]
mod wire;
