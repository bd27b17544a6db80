//! Commands in which a model's text would be code, and commands in which it is data.

use super::*;

fn check_words(command: &[&str], stdin: Stdin) -> Result<(), String> {
    let argv = command.iter().map(|word| Template::parse(word).expect("it is valid"));
    let written: Vec<String> = command.iter().map(ToString::to_string).collect();
    check(&argv.collect::<Vec<_>>(), &written, stdin)
}

/// Commands with a placeholder that would be code, one per line.
///
/// Regression: the README's first example of a tool was `sh -c "… {order} …"`, so an order of `; rm -r .` was
/// executed. The first check knew only a few interpreters and options, and accepted `sh -ce`, `python3.11 -c`,
/// `perl -lne`, `node --eval=`, `awk`, `ssh` and `su -c`.
const REFUSED: &str = "
    sh -c {x}
    sh -ce {x}
    sh -c -e {x}
    sh -ec true{x}
    sh {x}
    sh -s {x}
    sh -o pipefail -c {x}
    bash -c -- {x}
    bash --rcfile {x} -i
    bash --unknown script {x}
    bash +x -c {x}
    bash-static -c {x}
    bash5.2 -c {x}
    /bin/bash -lc {x}
    python3 -c {x}
    python3.11 -c {x}
    python3.11 -Ic {x}
    python -W {x} -c pass
    pypy3.10 -c {x}
    perl -e {x}
    perl -lne {x}
    perl -lne print {x}
    perl -I. -e {x}
    ruby -ne {x}
    ruby3.2 -e {x}
    node -e {x}
    node -pe {x}
    node -pe{x}
    node --eval={x}
    node --eval {x}
    nodejs -p {x}
    node18 --print={x}
    php -r {x}
    php8.2 -f {x}
    lua5.4 -e {x}
    lua -e true {x}
    awk {x}
    gawk -f {x}
    awk -F : {x}
    awk 1 -f {x}
    sed {x}
    sed -n {x}
    sed -e s/a/b/ -e {x}
    sed s/a/b/ -e {x}
    sed -i.bak {x} file
    sed --expression={x}
    timeout 5 sh -c {x}
    timeout -s KILL 5 {x}
    timeout {x} sh
    env A=1 python3 -c {x}
    env -S {x}
    env {x}
    nice -n 5 perl -e {x}
    nohup {x}
    setsid -w bash -ce {x}
    stdbuf -oL awk {x}
    sudo -u app sh -c {x}
    sudo {x}
    sudo -s {x}
    busybox sh -c {x}
    busybox awk {x}
    su -c {x}
    su app -c {x}
    ssh host {x}
    ssh host ls {x}
    xargs sh -c {x}
    xargs {x}
    watch {x}
    make {x}
    sqlite3 db {x}
    find . -name {x} -exec sh -c {x} ;
    find . -exec {x} ;
    find -- {x}
    docker exec c sh -c {x}
    docker run image python3.12 -c {x}
    strace -f bash -c {x}
    git -c {x} status
    tar -xf a.tar --to-command={x}
    tar -xf a.tar --to-command {x}
    rsync -e {x} a b
    frobnicate --eval={x}
    echo a{x}
    echo {x}{x}
    echo -n{x}
    echo a={x}
    {x}
";

#[test]
fn placeholders_that_would_be_code_are_refused() {
    for line in REFUSED.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split(' ').collect();
        assert!(check_words(&words, Stdin::Empty).is_err(), "accepted: {line}");
    }
}

#[test]
fn arguments_of_a_script_are_data() {
    for command in [
        &["sh", "-c", "echo \"$1\" >> ledger", "sh", "{x}"][..],
        &["bash", "-euo", "pipefail", "-c", "echo \"$1\"", "bash", "{x}", "{y}"],
        &["sh", "pay.sh", "--order", "{x}"],
        &["sh", "pay.sh", "--order={x}"],
        &["python3.11", "-I", "-c", "import sys; print(sys.argv[1])", "{x}"],
        &["python3", "pay.py", "-c", "{x}"],
        &["perl", "-we", "print shift", "{x}"],
        &["node", "--eval=f(process.argv[1])", "{x}"],
        &["node", "-pe", "process.argv[1]", "{x}"],
        &["php", "-r", "echo $argv[1];", "--", "{x}"],
        &["awk", "-F", ":", "{{ print $1 }}", "{x}"],
        &["sed", "-n", "s/a/b/p", "--", "{x}"],
        &["timeout", "-s", "KILL", "5", "sh", "-c", "echo \"$1\"", "sh", "{x}"],
        &["env", "-i", "A=1", "nice", "-n", "5", "grep", "-e", "{x}"],
        &["sudo", "-n", "-u", "app", "/usr/bin/refund", "{x}"],
        &["find", "/srv", "-name", "{x}", "-exec", "ls", "-l", "{{}}", ";"],
        &["grep", "-c", "-e", "{x}", "--", "{y}"],
        &["grep", "--max-count={x}", "-e", "{y}", "python"],
        &["git", "log", "--author={x}", "--", "{y}"],
        &["docker", "exec", "c", "sh", "-c", "echo \"$1\"", "sh", "{x}"],
        &["jq", "--arg", "order", "{x}", ".[$order]"],
    ] {
        check_words(command, Stdin::Empty).unwrap_or_else(|why| panic!("{command:?}: {why}"));
    }
}

/// By default, the arguments are written to stdin, and an interpreter without a script executes its stdin:
/// `{"order": "$(id)"}` is a shell command.
#[test]
fn an_interpreter_without_a_script_is_refused() {
    for command in [
        &["sh"][..],
        &["bash", "-s", "a"],
        &["python3", "-"],
        &["timeout", "5", "perl"],
        &["node", "-i"],
    ] {
        let why = check_words(command, Stdin::Arguments).expect_err("stdin would be executed");
        assert!(why.contains("would read its program from stdin"), "{why}");
        check_words(command, Stdin::Empty).expect("stdin is empty");
    }
    check_words(&["sh", "-c", "cat"], Stdin::Arguments).expect("the script reads them");
    check_words(&["cat"], Stdin::Arguments).expect("cat is not an interpreter");
}
