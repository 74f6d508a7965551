//! What the images of a directory are, in memory: the records, and what each name stands for. Look-ups by name, reference or
//! digest need no disk; the index changes only after the disk has.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::{Name, missing};
use crate::digest::{Digest, PREFIX};
use crate::error::{ImageError, Result};
use crate::image::{Image, Record};
use crate::limits::DIGEST_PREFIX_MIN_CHARS;
use crate::reference::Reference;

#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) images: BTreeMap<Digest, (Record, Arc<Image>)>,
    pub(super) names: HashMap<String, Name>,
}

impl Index {
    pub(super) fn find(&self, name: &str) -> Result<Digest> {
        if let Some(found) = self.names.get(name) {
            return Ok(found.digest.clone());
        }
        let hex = name.strip_prefix(PREFIX);
        if let Some(digest) = self.find_prefix(hex.unwrap_or(name))? {
            return Ok(digest);
        }
        if hex.is_some() {
            return Err(missing(name));
        }
        let reference = Reference::parse(name)?;
        let pinned = reference.digest().filter(|digest| self.images.contains_key(digest));
        let named = self.names.get(&reference.name()).map(|found| &found.digest);
        named.or(pinned).cloned().ok_or_else(|| missing(name))
    }

    fn find_prefix(&self, hex: &str) -> Result<Option<Digest>> {
        let long = (DIGEST_PREFIX_MIN_CHARS..=64).contains(&hex.len());
        if !long || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Ok(None);
        }
        let mut found = self.images.keys().filter(|digest| digest.hex().starts_with(hex));
        match (found.next(), found.next()) {
            (Some(_), Some(_)) => Err(ImageError::Ambiguous(hex.to_owned())),
            (first, _) => Ok(first.cloned()),
        }
    }
}
