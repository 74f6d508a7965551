//! What a sandbox may send to the gateway, found by coverage: `make fuzz`. It runs shortly with the other tests, too.

use bolero::check;

use crate::hello::{Hello, read};

#[test]
fn a_hello_says_one_name_however_much_of_it_is_there() {
    check!().for_each(|bytes: &[u8]| {
        let whole = read(bytes);
        for end in 0..bytes.len() {
            match read(&bytes[..end]) {
                Hello::Incomplete => {}
                // What was decided once is not decided differently by what follows.
                decided => assert_eq!(decided, whole, "after {end} bytes"),
            }
        }
    });
}
