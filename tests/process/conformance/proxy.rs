//! A TCP proxy in front of the server, which cuts connections and loses answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub(super) struct Proxy {
    pub(super) port: u16,
    cut: watch::Sender<()>,
    loses_answer: Arc<AtomicBool>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    pub(super) async fn start(server: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (cut, _) = watch::channel(());
        let cuts = cut.clone();
        let loses_answer = Arc::<AtomicBool>::default();
        let loses = Arc::clone(&loses_answer);
        let accepting = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let mut cut = cuts.subscribe();
                let loses = Arc::clone(&loses);
                tokio::spawn(async move {
                    // A connection is closed by dropping its sockets.
                    tokio::select! {
                        _ = cut.changed() => {}
                        _ = forward(client, server, &loses) => {}
                    }
                });
            }
        });
        Proxy { port, cut, loses_answer, accepting }
    }

    /// Cuts all connections, without a close frame.
    pub(super) fn cut(&self) {
        self.cut.send_replace(());
    }

    /// Does not forward the next bytes of the server, and cuts that connection.
    pub(super) fn lose_answer(&self) {
        self.loses_answer.store(true, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn forward(
    mut client: TcpStream,
    server: SocketAddr,
    loses: &AtomicBool,
) -> std::io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let requests = tokio::io::copy(&mut from_client, &mut to_server);
    let answers = async {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let bytes = from_server.read(&mut buffer).await?;
            if bytes == 0 || loses.swap(false, Ordering::SeqCst) {
                return Ok(0);
            }
            to_client.write_all(&buffer[..bytes]).await?;
        }
    };
    tokio::select! {
        ended = requests => ended.map(drop),
        ended = answers => ended.map(|_: u64| ()),
    }
}
