//! A test program that replaces an agent. Its arguments are steps, some with a value:
//!
//! ```text
//! line TEXT      writes the text and a newline         text TEXT    writes it without one
//! hex BYTES      writes bytes that need not be text    long N       writes a line of N bytes
//! stderr N       writes N bytes on stderr, and a last line
//! echo           reads stdin to its end and prints it  echo-line    reads a line and prints it
//! close-stdin    never reads stdin                     hang         waits forever
//! ignore-term    ignores SIGTERM from now on           hold PATH    opens it for writing, and keeps it
//! on-int TEXT    prints that it listens; at SIGINT writes the text and goes on
//! on-term TEXT   the same at SIGTERM
//! drip TEXT      writes the text again and again       env NAME     prints a variable
//! cwd            prints the folder                     child        starts one that hangs, in its group
//! stray          starts one that hangs, in another group, and prints its id
//! die            kills itself                          exit CODE    exits
//! ```

use std::fs::File;
use std::io::{BufRead as _, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use serde_json::json;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

/// Delay between two writes: short compared to all deadlines of the tests.
const DRIP: Duration = Duration::from_millis(20);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut steps = std::env::args().skip(1);
    let mut received: Vec<Signals> = Vec::new();
    let mut held: Vec<File> = Vec::new();
    let mut left: Vec<Child> = Vec::new();
    while let Some(step) = steps.next() {
        let mut value = || steps.next().expect("the step has a value");
        match step.as_str() {
            "line" => write(format!("{}\n", value()).as_bytes()),
            "text" => write(value().as_bytes()),
            "hex" => write(&bytes(&value())),
            "long" => write(format!("{}\n", "x".repeat(number(&value()))).as_bytes()),
            "stderr" => complain(number(&value())),
            "echo" => echo(),
            "echo-line" => echo_line(),
            "close-stdin" => close_stdin(),
            "hang" => hang(),
            "ignore-term" => received.push(listen(SignalKind::terminate())),
            "on-int" => at(SignalKind::interrupt(), &value()).await,
            "on-term" => at(SignalKind::terminate(), &value()).await,
            "hold" => {
                held.push(File::options().write(true).open(value()).expect("the file exists"))
            }
            "drip" => drip(&value()),
            "env" => tell("env", std::env::var(value()).ok()),
            "cwd" => tell("cwd", std::env::current_dir().expect("there is a folder").to_str()),
            "child" => left.push(hanging().spawn().expect("it starts")),
            "stray" => {
                let child = hanging().process_group(0).spawn().expect("it starts");
                tell("stray", Some(child.id()));
                left.push(child);
            }
            "die" => kill_process(getpid(), Signal::KILL).expect("the signal can be sent"),
            "exit" => std::process::exit(number(&value()).try_into().expect("it is a code")),
            // The flags of the program that it replaces.
            flag if flag.starts_with("--") || ["exec", "run"].contains(&flag) => break,
            other => panic!("there is no step {other}"),
        }
    }
}

/// The reader may have closed the pipe.
fn write(bytes: &[u8]) {
    let mut out = std::io::stdout();
    if out.write_all(bytes).and_then(|()| out.flush()).is_err() {
        std::process::exit(141);
    }
}

fn tell(what: &str, value: impl serde::Serialize) {
    write(format!("{}\n", json!({ what: value })).as_bytes());
}

fn complain(bytes: usize) {
    let mut err = std::io::stderr();
    let flood = "x".repeat(bytes);
    writeln!(err, "{flood}\nthe last words").expect("stderr is read");
}

fn echo() {
    let mut read = String::new();
    std::io::stdin().read_to_string(&mut read).expect("stdin is text");
    tell("echo", read);
}

fn echo_line() {
    let mut read = String::new();
    std::io::stdin().lock().read_line(&mut read).expect("stdin is text");
    tell("echo", read);
}

/// Replaces stdin, so that the pipe has no reader.
fn close_stdin() {
    let nothing = File::open("/dev/null").expect("/dev/null exists");
    rustix::stdio::dup2_stdin(nothing).expect("stdin is replaced");
}

fn hang() -> ! {
    loop {
        std::thread::park();
    }
}

fn drip(text: &str) -> ! {
    let (_never, nothing) = std::sync::mpsc::channel::<()>();
    loop {
        write(format!("{text}\n").as_bytes());
        let _ = nothing.recv_timeout(DRIP);
    }
}

async fn at(kind: SignalKind, text: &str) {
    let mut signals = listen(kind);
    tell("listens", true);
    signals.recv().await;
    write(format!("{text}\n").as_bytes());
}

fn listen(kind: SignalKind) -> Signals {
    signal(kind).expect("signals can be handled")
}

/// A second instance that shares stdout and stderr, and does nothing.
fn hanging() -> Command {
    let mut command = Command::new(std::env::current_exe().expect("it has a path"));
    command.arg("hang").stdin(Stdio::null());
    command
}

fn number(text: &str) -> usize {
    text.parse().expect("it is a number")
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2);
    let digits = digits.map(|pair| std::str::from_utf8(pair).expect("it is hex"));
    digits.map(|pair| u8::from_str_radix(pair, 16).expect("it is hex")).collect()
}
