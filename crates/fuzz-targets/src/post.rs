//! Message target: greetings, heads, requests and replies between compute servers of `dex`.
//!
//! Input: the kind of message, and its bytes. Beyond not panicking, the target checks that an accepted
//! message encodes to the same bytes, so that no message has two forms.

use farleaf_index::dex::post::wire::{
    GREETING_BYTES, Hello, REPLY_HEAD_BYTES, REQUEST_HEAD_BYTES, VERSION, Welcome, decode_reply,
    decode_reply_head, decode_request, decode_request_head, encode_reply, encode_request,
};

use crate::bytes::Bytes;

pub(crate) fn run(input: &[u8]) {
    let mut bytes = Bytes::new(input);
    match bytes.u8() % 4 {
        0 => {
            let mut greeting = [0; GREETING_BYTES];
            let given = bytes.take(GREETING_BYTES);
            greeting[..given.len()].copy_from_slice(given);
            if let Some(hello) = Hello::decode(&greeting).filter(|it| it.version == VERSION) {
                assert_eq!(hello.encode(), greeting);
            }
            if let Some(welcome) = Welcome::decode(&greeting).filter(|it| it.version == VERSION) {
                assert_eq!(welcome.encode(), greeting);
            }
        }
        1 => {
            let content = bytes.rest();
            if let Ok(request) = decode_request(content) {
                let again = encode_request(3, 4, &request).expect("it came from one");
                let (head, same) = again.split_at(REQUEST_HEAD_BYTES);
                assert_eq!(same, content);
                let head = head.try_into().expect("the head");
                assert_eq!(decode_request_head(head), Ok((content.len(), 3, 4)));
            }
        }
        2 => {
            let content = bytes.rest();
            if let Ok(outcome) = decode_reply(content) {
                let again = encode_reply(3, &outcome);
                let (head, same) = again.split_at(REPLY_HEAD_BYTES);
                assert_eq!(same, content);
                let head = head.try_into().expect("the head");
                assert_eq!(decode_reply_head(head), Ok((content.len(), 3)));
            }
        }
        _ => {
            let mut head = [0; REQUEST_HEAD_BYTES];
            let given = bytes.take(REQUEST_HEAD_BYTES);
            head[..given.len()].copy_from_slice(given);
            let front = std::array::from_fn(|at| head[at]);
            let (request, reply) = (decode_request_head(&head), decode_reply_head(&front));
            assert_eq!(request.is_ok(), reply.is_ok());
        }
    }
}
