//! The module that `docs/own-modules.md` shows, used as the page uses it.

use abide_client::Abide;
use serde_json::json;

use crate::notes;

#[tokio::test]
async fn the_module_of_the_page_works() {
    let page = include_str!("../../../../docs/own-modules.md");
    assert!(page.contains(include_str!("notes.rs")), "the page shows another module");

    let folder = tempfile::tempdir().expect("there is room for a folder");
    let path = folder.path().join("agents.db");
    let abide = Abide::open_with(path, vec![notes::module()]).expect("the file opens");
    let session = json!({"agent": "support", "id": "s1"});
    abide.call("create_session", session).await.expect("it is created");
    let note = json!({"session_id": "s1", "body": "Call back on Monday"});
    abide.call("add_note", note).await.expect("it is added");
    let stored: Vec<(i64, String)> =
        abide.sql("SELECT id, body FROM notes").fetch().await.expect("it is read");
    assert_eq!(stored, [(1, "Call back on Monday".to_owned())]);
    abide.close().await;
}
