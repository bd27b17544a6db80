//! WebSockets: subscriptions, order, backpressure.

use crate::house::House;

#[tokio::test]
async fn a_subscription_is_told_its_result_and_every_change() {
    let house = House::open().await;
    house.post("/v1/call/write_note", r#"{"book":"a","text":"one"}"#).await;
    let mut socket = house.socket().await;
    let sql = "SELECT id, text FROM notes WHERE book = :book";
    socket
        .say(&format!(r#"{{"op":"subscribe","id":"q1","sql":"{sql}","params":{{"book":"a"}}}}"#))
        .await;
    let snapshot = socket.hear().await;
    assert_eq!(snapshot["rows"], serde_json::json!([[1, "one"]]));
    house.post("/v1/call/edit_note", r#"{"id":1,"text":"two"}"#).await;
    let delta = socket.hear().await;
    assert_eq!(delta["changes"][0]["updates"], serde_json::json!([[1, "two"]]));
}
