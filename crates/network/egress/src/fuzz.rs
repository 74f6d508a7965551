//! Input that a sandbox may send to the gateway, found by coverage: `make fuzz`. It also runs for a short time with the
//! other tests.

pub(crate) mod wire;

use bolero::check;

use crate::hello::{Hello, read};

#[test]
fn a_hello_says_one_name_however_much_of_it_is_there() {
    check!().for_each(|bytes: &[u8]| {
        let whole = read(bytes);
        for end in 0..bytes.len() {
            match read(&bytes[..end]) {
                Hello::Incomplete => {}
                // Further bytes do not change a decision.
                decided => assert_eq!(decided, whole, "after {end} bytes"),
            }
        }
    });
}
