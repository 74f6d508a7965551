//! API keys in the shapes of other vendors: random characters behind a prefix, one part or a pair.

use atoll_core::key::KeyFormat;
use atoll_core::secret::Secret;
use zeroize::Zeroizing;

use crate::vault::VaultError;

const HEX: &[u8] = b"0123456789abcdef";
const LETTERS_AND_DIGITS: &[u8] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// Stands between the two parts of a pair.
const JOINT: char = ':';

/// One part of a key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    prefix: &'static str,
    /// Characters behind the prefix.
    len: usize,
    alphabet: &'static [u8],
}

const fn shape(prefix: &'static str, len: usize, alphabet: &'static [u8]) -> Shape {
    Shape { prefix, len, alphabet }
}

/// The parts of a format's keys; none for our own.
pub(crate) const fn shapes(format: KeyFormat) -> &'static [Shape] {
    const E2B: &[Shape] = &[shape("e2b_", 40, HEX)];
    const DAYTONA: &[Shape] = &[shape("dtn_", 64, HEX)];
    const RUNLOOP: &[Shape] = &[shape("ak_", 43, LETTERS_AND_DIGITS)];
    const MODAL: &[Shape] = &[shape("ak-", 22, LETTERS_AND_DIGITS), shape("as-", 22, LETTERS_AND_DIGITS)];
    match format {
        KeyFormat::Atoll => &[],
        KeyFormat::E2b => E2B,
        KeyFormat::Daytona => DAYTONA,
        KeyFormat::Runloop => RUNLOOP,
        KeyFormat::Modal => MODAL,
    }
}

impl Shape {
    fn generate(self, text: &mut String) -> Result<(), VaultError> {
        // Bytes from the last, incomplete round of the alphabet would make its first characters likelier.
        let fair = 256 - 256 % self.alphabet.len();
        let mut left = self.len;
        text.push_str(self.prefix);
        while left > 0 {
            let mut random = Zeroizing::new([0; 64]);
            aws_lc_rs::rand::fill(&mut random[..]).or(Err(VaultError::Cipher))?;
            for byte in random.iter().map(|byte| usize::from(*byte)).filter(|byte| *byte < fair).take(left) {
                text.push(char::from(self.alphabet[byte % self.alphabet.len()]));
                left -= 1;
            }
        }
        Ok(())
    }

    fn fits(self, text: &str) -> bool {
        text.strip_prefix(self.prefix)
            .is_some_and(|rest| rest.len() == self.len && rest.bytes().all(|b| self.alphabet.contains(&b)))
    }
}

/// A new key of these parts.
pub(crate) fn generate(shapes: &[Shape]) -> Result<Secret, VaultError> {
    let len = shapes.iter().map(|shape| shape.prefix.len() + shape.len + 1).sum();
    let mut text = Zeroizing::new(String::with_capacity(len));
    for (at, shape) in shapes.iter().enumerate() {
        if at > 0 {
            text.push(JOINT);
        }
        shape.generate(&mut text)?;
    }
    Ok(Secret::new(text.as_str()))
}

/// Whether a text consists of these parts. Nothing does of none.
pub(crate) fn fits(text: &str, shapes: &[Shape]) -> bool {
    let mut parts = text.split(JOINT);
    !shapes.is_empty()
        && shapes.iter().all(|shape| parts.next().is_some_and(|part| shape.fits(part)))
        && parts.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_shape_of_their_format_and_of_no_other() {
        for format in KeyFormat::ALL {
            if shapes(format).is_empty() {
                continue;
            }
            let key = generate(shapes(format)).unwrap();
            let text = key.reveal();
            for other in KeyFormat::ALL {
                assert_eq!(fits(text, shapes(other)), format == other, "{format:?} {other:?}");
            }
            assert_ne!(generate(shapes(format)).unwrap().reveal(), text);
            for bad in ["", &text[1..], &text[..text.len() - 1], &format!("{text}0"), &format!("{text}:")] {
                assert!(!fits(bad, shapes(format)), "{bad}");
            }
        }
        let e2b = generate(shapes(KeyFormat::E2b)).unwrap();
        assert_eq!((e2b.reveal().len(), e2b.reveal().starts_with("e2b_")), (44, true));
        assert!(!fits(&e2b.reveal().to_uppercase(), shapes(KeyFormat::E2b)));
    }
}
