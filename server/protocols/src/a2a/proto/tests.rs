//! Messages are the same after encoding and decoding, and no bytes make the decoder fail.

use super::*;

fn request() -> JsonValue {
    json!({"tenant": "clerk", "message": {"messageId": "m1", "contextId": "c", "role": "ROLE_USER",
        "parts": [{"text": "Hé."}, {"raw": "YQ==", "filename": "a", "mediaType": "text/plain"},
            {"url": "https://example.com/"},
            {"data": {"a": [1, -2.5, true, null, "x", {}], "b": 9_007_199_254_740_991_i64}}],
        "extensions": ["e1", "e2"], "metadata": {"n": 1}},
        "configuration": {"historyLength": 0, "returnImmediately": true}})
}

#[test]
fn a_message_is_the_same_after_encoding() {
    let bytes = SEND_REQUEST.encode(&request());
    assert_eq!(SEND_REQUEST.decode(&bytes), Ok(request()));
    let task = json!({"task": {"id": "t", "contextId": "c", "status": {"state":
        "TASK_STATE_WORKING", "timestamp": "2026-11-21T14:02:11.500Z"},
        "artifacts": [{"artifactId": "a", "parts": [{"text": ""}]}]}});
    assert_eq!(STREAM_RESPONSE.decode(&STREAM_RESPONSE.encode(&task)), Ok(task));
}

/// The bytes that the generated code of another implementation writes.
#[test]
fn the_encoding_is_that_of_protocol_buffers() {
    let list = json!({"tenant": "a", "pageSize": 300, "status": "TASK_STATE_FAILED",
        "statusTimestampAfter": "1970-01-01T00:00:01.5Z", "includeArtifacts": true});
    let bytes = LIST_REQUEST.encode(&list);
    assert_eq!(
        hex::encode(bytes),
        "0a01611804".to_owned() + "20ac02" + "3a0808011080cab5ee01" + "4001"
    );
}

#[test]
fn damaged_bytes_are_refused_or_read() {
    let bytes = SEND_REQUEST.encode(&request());
    for at in 0..bytes.len() {
        let _ = SEND_REQUEST.decode(&bytes[..at]);
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            if let Ok(message) = SEND_REQUEST.decode(&damaged) {
                SEND_REQUEST.encode(&message);
            }
        }
    }
    let mut deep = Vec::new();
    for _ in 0..1_000 {
        let mut outer = Vec::new();
        write_nested(6, &mut outer, |out| write_bytes(1, &deep, out));
        deep = outer;
    }
    let mut part = Vec::new();
    write_bytes(4, &deep, &mut part);
    assert!(read_message(PART, &part, DEPTH, &mut { FIELDS }).is_none(), "it is nested too deeply");
}

/// Half a million objects in 3 MB took 1.4 GB of memory.
#[test]
fn fields_are_counted_while_they_are_read() {
    let send = |values: usize| {
        let values = vec![json!({"": null}); values];
        let parts = json!([{"data": values}]);
        SEND_REQUEST.encode(&json!({"message": {"parts": parts}}))
    };
    // Each object has an element, an object, an entry, and a name and a null in it.
    let fitting = FIELDS / 10;
    let read = SEND_REQUEST.decode(&send(fitting)).expect("a message");
    assert_eq!(read["message"]["parts"][0]["data"].as_array().map(Vec::len), Some(fitting));
    assert_eq!(SEND_REQUEST.decode(&send(FIELDS / 2)), Err(NotDecoded::TooManyFields));
    // Unknown fields are not kept, but they are work.
    assert_eq!(SEND_REQUEST.decode(&[0x78, 0].repeat(FIELDS)).map(|it| it == json!({})), Ok(true));
    assert_eq!(SEND_REQUEST.decode(&[0x78, 0].repeat(FIELDS + 1)), Err(NotDecoded::TooManyFields));
}
