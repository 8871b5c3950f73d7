//! Message target: requests and replies between compute servers.
//!
//! Input: the kind of message, and its bytes. Beyond not panicking, the target checks that an accepted
//! message encodes to the same bytes, so that no message has two forms.

use farleaf_index::compute::messages::{
    decode_reply, decode_request, encode_reply, encode_request,
};

use crate::bytes::Bytes;

pub(crate) fn run(input: &[u8]) {
    let mut bytes = Bytes::new(input);
    let is_request = bytes.u8().is_multiple_of(2);
    let content = bytes.rest();
    if is_request {
        if let Ok((table, op)) = decode_request(content) {
            assert_eq!(encode_request(table, &op), content);
        }
    } else if let Ok(outcome) = decode_reply(content) {
        assert_eq!(encode_reply(&outcome), content);
    }
}
