//! The retention of changes, as set on the command line.

use abide_client::arguments::{AppendMessage, CreateSession};
use abide_client::{Code, Seq};

use crate::server::Server;

/// A client that was away for too long receives the whole result instead of the changes, even if
/// the server was restarted meanwhile.
#[tokio::test]
async fn a_server_with_a_short_retention() {
    let mut server = Server::start();
    server.restart_with(&["--retention-events", "5"]);
    let abide = server.client().await;
    let session = abide.call(CreateSession::new("support")).await.unwrap().into_inner();
    for nth in 0..20 {
        abide.call(AppendMessage::new(&session.id, "user", nth.to_string())).await.unwrap();
    }
    let messages = "SELECT id, content FROM agent_state";
    let mut live = abide.subscribe(messages).checksum().await.unwrap();
    for again in [false, true] {
        if again {
            server.kill();
            server.start_again();
        }
        let mut long_away = abide.subscribe(messages).after(15).await.unwrap();
        let all = long_away.try_next().await.unwrap().unwrap();
        assert_eq!((all.reset, all.insert_rows().len(), all.seq), (true, 20, Seq(21)));
        let mut away = abide.subscribe(messages).after(16).await.unwrap();
        let missed = away.try_next().await.unwrap().unwrap();
        assert_eq!((missed.reset, missed.insert_rows().len()), (false, 5));

        let then = abide.subscribe(messages).as_of(16).checksum().await.unwrap();
        assert_eq!(then.rows().len(), 15);
        let gone = abide.subscribe(messages).as_of(15).await.unwrap_err();
        assert_eq!(gone.code(), Some(Code::HistoryExpired));
        assert_eq!(gone.to_string(), "changes are kept from seq 16 on, not from 15");
        let once = abide.sql(messages).as_of(15).rows().await.unwrap_err();
        assert_eq!((once.code(), once.to_string()), (gone.code(), gone.to_string()));
    }
    live.try_next().await.unwrap();
    abide.call(AppendMessage::new(&session.id, "user", "the last")).await.unwrap();
    live.try_next().await.unwrap();
    assert_eq!((live.rows().len(), abide.mismatches()), (21, 0));
    server.stop();
    assert_eq!(server.verify(), 22, "the log itself is complete");
}
