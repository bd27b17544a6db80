//! Decoders of files and frames: undo images of the change log for every table, and a server's
//! messages. Decoded data must encode to the same data.

use abide_schema::wire::ServerMessage;
use abide_store::change_log::{decode, encode};

/// See the [module](self).
pub fn run(input: &[u8]) {
    for module in abide_reducers::modules() {
        for table in &module.tables {
            let Ok(images) = decode(table, input) else { continue };
            let mut again = Vec::new();
            images.iter().for_each(|image| encode(image, &mut again));
            let decoded = decode(table, &again);
            let first = format!("{images:?}");
            let second = format!("{decoded:?}");
            assert_eq!(format!("Ok({first})"), second, "{}", table.name);
        }
    }
    if let Ok(message) = serde_json::from_slice::<ServerMessage>(input) {
        let text = serde_json::to_string(&message).expect("a message can be written");
        let again = serde_json::from_str::<ServerMessage>(&text)
            .unwrap_or_else(|why| panic!("{why}: {text}"));
        assert_eq!(serde_json::to_string(&again).ok(), Some(text));
    }
}
