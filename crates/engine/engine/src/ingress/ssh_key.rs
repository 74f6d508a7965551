//! SSH public keys. Each stands for an API key: a user who logs in with it may do what that key may.

use atoll_core::id::SshKeyId;
use atoll_core::limits::SSH_KEYS_MAX_COUNT;
use atoll_core::{Code, Error, Result, access};
use atoll_store::{SshKeyRecord, StoreError};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use sha2::{Digest as _, Sha256};

use crate::boxed;
use crate::clock::random;
use crate::engine::Engine;
use crate::errors::store_error;
use crate::keys::VerifiedKey;

/// Longest line of a public key, bytes: RSA of 16,384 bits, with a comment.
const LINE_MAX_BYTES: usize = 8 << 10;
/// Kinds of keys that are taken.
const KINDS: [&str; 7] = [
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "ssh-rsa",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
];

/// A public key as a line has it.
#[derive(Debug, PartialEq, Eq)]
struct PublicKey {
    /// Kind and key, without a comment.
    text: String,
    /// `SHA256:…`, as every SSH program shows it.
    fingerprint: String,
}

impl PublicKey {
    fn parse(line: &str) -> Result<Self> {
        let wrong = || {
            Error::invalid("public_key", "not an SSH public key")
                .hint("give the line of a file such as ~/.ssh/id_ed25519.pub")
        };
        if line.len() > LINE_MAX_BYTES || line.trim().contains(['\n', '\r', '\0']) {
            return Err(wrong());
        }
        let mut words = line.split_whitespace();
        let (kind, key) = words.next().zip(words.next()).ok_or_else(wrong)?;
        let bytes = STANDARD.decode(key).map_err(|_error| wrong())?;
        // The key names its kind itself, after four bytes of length.
        let (length, rest) = bytes.split_first_chunk::<4>().ok_or_else(wrong)?;
        let named = rest.get(..usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX));
        if !KINDS.contains(&kind) || named != Some(kind.as_bytes()) || rest.len() <= kind.len() + 4 {
            return Err(wrong());
        }
        let fingerprint = format!("SHA256:{}", STANDARD_NO_PAD.encode(Sha256::digest(&bytes)));
        Ok(Self { text: format!("{kind} {key}"), fingerprint })
    }
}

impl Engine {
    /// Registers an SSH public key, a line as in `authorized_keys`, for the API key of the caller. Registering
    /// the same key for the same API key again replaces name and end.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`], [`Code::LimitExceeded`]; [`Code::NameTaken`] when the key is registered for
    /// another API key.
    #[boxed]
    pub async fn add_ssh_key(
        &self,
        name: &str,
        public_key: &str,
        ttl_ms: Option<u64>,
        owner: &VerifiedKey,
    ) -> Result<SshKeyRecord> {
        access::label("name", name)?;
        let PublicKey { text: public_key, fingerprint } = PublicKey::parse(public_key)?;
        if ttl_ms == Some(0) {
            return Err(Error::invalid("ttl_ms", "must be at least 1"));
        }
        let created_ms = self.inner.now_ms();
        let store = &self.inner.store;
        store.prune_ssh_keys(created_ms).await.map_err(store_error)?;
        let all = store.list_ssh_keys().await.map_err(store_error)?;
        if let Some(known) = all.iter().find(|record| record.fingerprint == fingerprint) {
            if known.owner != owner.id {
                return Err(Error::new(Code::NameTaken, "this SSH key is registered for another API key")
                    .hint("remove it there, or use another SSH key"));
            }
            // In place: a login meanwhile finds it.
            let expires_ms = ttl_ms.map(|ttl| created_ms.saturating_add(ttl));
            if store.renew_ssh_key(&known.id, name, expires_ms).await.map_err(store_error)? {
                self.inner.acl.ssh_key_changed();
                return Ok(SshKeyRecord { name: name.to_owned(), expires_ms, ..known.clone() });
            }
        } else if all.iter().filter(|record| record.owner == owner.id).count() >= SSH_KEYS_MAX_COUNT {
            return Err(Error::new(
                Code::LimitExceeded,
                format!("the API key has {SSH_KEYS_MAX_COUNT} SSH keys already"),
            )
            .hint("remove some"));
        }
        let record = SshKeyRecord {
            id: SshKeyId::from_parts(created_ms, random()?),
            name: name.to_owned(),
            public_key,
            fingerprint,
            owner: owner.id.clone(),
            created_ms,
            expires_ms: ttl_ms.map(|ttl| created_ms.saturating_add(ttl)),
        };
        match store.insert_ssh_key(&record).await {
            Ok(()) => Ok(record),
            Err(StoreError::AlreadyExists) => {
                Err(Error::new(Code::NameTaken, "this SSH key was registered at the same time")
                    .hint("try again"))
            }
            Err(error) => Err(store_error(error)),
        }
    }

    /// Every SSH key of an API key, or of all.
    ///
    /// # Errors
    /// [`Code::StoreUnavailable`].
    #[boxed]
    pub async fn ssh_keys(&self, owner: Option<&VerifiedKey>) -> Result<Vec<SshKeyRecord>> {
        let mut records = self.inner.store.list_ssh_keys().await.map_err(store_error)?;
        let now = self.inner.now_ms();
        records.retain(|record| record.expires_ms.is_none_or(|end| end > now));
        records.retain(|record| owner.is_none_or(|owner| record.owner == owner.id));
        Ok(records)
    }

    /// Removes an SSH key of an API key, or of any: no new login works with it, and those that are open end.
    ///
    /// # Errors
    /// [`Code::SshKeyNotFound`].
    #[boxed]
    pub async fn remove_ssh_key(&self, id: &str, owner: Option<&VerifiedKey>) -> Result<()> {
        let parsed: SshKeyId = id.parse()?;
        if !self.ssh_keys(owner).await?.iter().any(|record| record.id == parsed) {
            return Err(SshKeyId::not_found(id));
        }
        self.inner.store.delete_ssh_key(&parsed).await.map_err(store_error)?;
        self.inner.acl.ssh_key_changed();
        Ok(())
    }

    /// The API key that an SSH key stands for, if both are good, and when the SSH key runs out.
    ///
    /// # Errors
    /// [`Code::Unauthorized`]; [`Code::StoreUnavailable`].
    #[boxed]
    pub async fn verify_ssh_key(&self, fingerprint: &str) -> Result<(VerifiedKey, Option<u64>)> {
        let refused = || Error::new(Code::Unauthorized, "the SSH key is not registered");
        let found = self.inner.store.ssh_key(fingerprint).await.map_err(store_error)?;
        let record = found.ok_or_else(refused)?;
        if record.expires_ms.is_some_and(|end| end <= self.inner.now_ms()) {
            return Err(refused());
        }
        let key = self.verified_by_id(&record.owner).ok_or_else(refused)?;
        Ok((key, record.expires_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_keys_are_read_as_ssh_reads_them() {
        let key = "AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti";
        let read = PublicKey::parse(&format!("ssh-ed25519 {key} user@example.com\n")).unwrap();
        assert_eq!(read.text, format!("ssh-ed25519 {key}"));
        // As 'ssh-keygen -l' says.
        assert_eq!(read.fingerprint, "SHA256:UCUiLr7Pjs9wFFJMDByLgc3NrtdU344OgUM45wZPcIQ");
        for bad in [
            "",
            "ssh-ed25519",
            key,
            &format!("ssh-rsa {key}"),
            &format!("ssh-dss {key}"),
            "ssh-ed25519 AAAA",
            "ssh-ed25519 !!!!",
            &format!("ssh-ed25519 {key}\nssh-ed25519 {key}"),
            &format!("command=\"x\" ssh-ed25519 {key}"),
        ] {
            assert!(PublicKey::parse(bad).is_err(), "{bad}");
        }
    }
}
