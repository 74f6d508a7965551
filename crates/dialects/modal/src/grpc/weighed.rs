//! Messages as they are read. What one takes in memory has little to do with its length: two bytes on the wire can be an
//! element of a list, which takes eighty in memory. So each part that is read takes of the caller's share, and no more of
//! the message is read when there is no more of that.

use atoll_core::Error;
use atoll_dialect_kit::memory::Held;
use bytes::{Buf, Bytes};
use prost::Message;

use super::{Fault, Result};

/// What is counted for each part of a message (a field's number, a length, a value), bytes, beside what is copied of it.
/// An element of a list has two parts at least, takes no more than this, and a list has room for up to twice its elements.
const PART_BYTES: usize = 96;
/// The share is asked for as much at once, bytes, so that not each part waits for its lock.
const STEP_BYTES: usize = 16 << 10;

/// A message that is being read.
struct Weighed<'a> {
    rest: Bytes,
    held: &'a mut Held,
    /// Bytes that were taken of the share and that no part needed yet.
    spare: usize,
    /// Why no more is read.
    refused: Option<Error>,
}

/// Reads a message whose memory is taken of `held`, where it stays.
///
/// # Errors
/// `INVALID_ARGUMENT` for a message that cannot be read; as [`Held::grow`].
pub(super) fn read<M: Message + Default>(message: Bytes, held: &mut Held) -> Result<M> {
    let mut weighed = Weighed { rest: message, held, spare: 0, refused: None };
    let read = M::decode(&mut weighed);
    // A message that was not read to its end may look whole.
    if let Some(error) = weighed.refused {
        return Err(Fault::from(error));
    }
    read.map_err(|error| Fault::invalid(format!("the message cannot be read: {error}")))
}

impl Weighed<'_> {
    /// Counts a part, of which so many bytes are copied.
    fn weigh(&mut self, copied: usize) {
        if self.refused.is_some() {
            return;
        }
        let wanted = copied.saturating_add(PART_BYTES);
        if let Some(lacking) = wanted.checked_sub(self.spare).filter(|lacking| *lacking > 0) {
            let step = lacking.max(STEP_BYTES);
            if let Err(error) = self.held.grow(step) {
                self.refused = Some(error);
                return;
            }
            self.spare += step;
        }
        self.spare -= wanted;
    }
}

/// After a refusal nothing remains. What the decoder had seen before is still there for it: it looks at what remains,
/// and then reads as much, in one or several steps.
impl Buf for Weighed<'_> {
    fn remaining(&self) -> usize {
        if self.refused.is_some() { 0 } else { self.rest.remaining() }
    }

    fn chunk(&self) -> &[u8] {
        if self.refused.is_some() { &[] } else { self.rest.chunk() }
    }

    fn advance(&mut self, count: usize) {
        self.rest.advance(count);
        self.weigh(count);
    }

    fn get_u8(&mut self) -> u8 {
        let byte = self.rest.get_u8();
        self.weigh(1);
        byte
    }

    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        // They are those of the message, and no copy.
        let bytes = self.rest.copy_to_bytes(count);
        self.weigh(0);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use atoll_dialect_kit::memory::Memory;
    use atoll_dialect_kit::status::Status;
    use atoll_engine::Caller;

    use super::*;
    use crate::wire::apps::{MountFile, MountGetOrCreateRequest, MountPutFileRequest};
    use crate::wire::common::{SecretSource, VolumeMount};
    use crate::wire::content::{VolumePutFiles2RequestBlock, VolumePutFiles2RequestFile};
    use crate::wire::images::{BaseImage, ImageContextFile};
    use crate::wire::sandboxes::{CloudBucketMount, PortSpec, SandboxTag, SharedVolumeMount};

    /// Of a share of so many bytes, which one caller may have.
    fn held(bytes: usize) -> Held {
        Memory::new(2 * bytes).hold(&Caller::system())
    }

    /// So many empty files of a mount.
    fn files(count: usize) -> Vec<u8> {
        const FIELD: u8 = (5 << 3) | 2;
        [FIELD, 0].repeat(count)
    }

    #[test]
    fn many_small_elements_take_more_than_their_bytes() {
        let mut held = held(1 << 20);
        let read_files = |held: &mut Held, count| read::<MountGetOrCreateRequest>(files(count).into(), held);
        assert_eq!(read_files(&mut held, 1000).unwrap().files.len(), 1000);
        let fault = read_files(&mut held, 10_000).unwrap_err();
        assert_eq!(fault.status, Status::ResourceExhausted);
        held.give_back(usize::MAX);
        assert_eq!(read_files(&mut held, 1000).unwrap().files.len(), 1000);
    }

    #[test]
    fn content_takes_nothing_beside_its_message() {
        let data = Bytes::from(vec![42; 1 << 20]);
        let sent = MountPutFileRequest { data: Some(data.clone()), ..MountPutFileRequest::default() };
        let read: MountPutFileRequest = read(sent.encode_to_vec().into(), &mut held(STEP_BYTES)).unwrap();
        assert_eq!(read.data, Some(data));
        let text = MountGetOrCreateRequest { deployment_name: "x".repeat(1 << 20), ..Default::default() };
        let refused = super::read::<MountGetOrCreateRequest>(text.encode_to_vec().into(), &mut held(1 << 20));
        assert_eq!(refused.unwrap_err().status, Status::ResourceExhausted);
    }

    /// Messages whose memory ends shortly before or after numbers and texts of any form.
    #[test]
    fn it_may_end_anywhere() {
        let tails: [&[u8]; 7] = [
            &[0x80],
            &[0xff; 9],
            &[0xff; 12],
            &[42, 0x80, 0x80],
            &[42, 2, 32, 0x80],
            &[42, 3, 10, 200, 1],
            &[10, 0xff, 0xff, 3, 0xff],
        ];
        for count in 70..100 {
            for tail in tails {
                let message = [files(count).as_slice(), tail].concat();
                assert!(read::<MountGetOrCreateRequest>(message.into(), &mut held(STEP_BYTES)).is_err());
            }
        }
        assert!(read::<MountGetOrCreateRequest>(files(70).into(), &mut held(STEP_BYTES)).is_ok());
        assert!(read::<MountGetOrCreateRequest>(files(100).into(), &mut held(STEP_BYTES)).is_err());
    }

    #[test]
    fn no_element_is_larger_than_what_is_counted() {
        let sizes = [
            size_of::<String>(),
            size_of::<(String, String)>(),
            size_of::<MountFile>(),
            size_of::<SecretSource>(),
            size_of::<VolumeMount>(),
            size_of::<VolumePutFiles2RequestBlock>(),
            size_of::<VolumePutFiles2RequestFile>(),
            size_of::<BaseImage>(),
            size_of::<ImageContextFile>(),
            size_of::<CloudBucketMount>(),
            size_of::<PortSpec>(),
            size_of::<SandboxTag>(),
            size_of::<SharedVolumeMount>(),
        ];
        assert!(sizes.into_iter().all(|size| size <= PART_BYTES), "{sizes:?}");
    }
}
