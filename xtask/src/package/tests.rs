//! Formats of archives, and arguments.

use std::collections::BTreeSet;

use super::archive::{Archive, ar, gzip};
use super::dependencies::Dependencies;
use super::matrix::{Pair, read_pairs};
use super::*;

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn arguments_are_parsed() {
    let parse = |text| Arguments::parse(&words(text));
    let only = Arguments { only: Some("deb".to_owned()), is_checked: true, ..Arguments::default() };
    assert_eq!(parse("--only deb --check"), Ok(only));
    assert_eq!(parse(""), Ok(Arguments::default()));
    for wrong in ["--only rpm", "--binary", "--all", "deb --check"] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
    assert!(Platform::find(Some("mips-unknown-linux-gnu")).is_err());
}

/// 2.9 is older than 2.34, and a version can have three parts.
#[test]
fn the_newest_glibc_is_found_in_the_headers() {
    let headers = "\
        Version References:\n  required from libc.so.6:\n    \
        0x09691974 0x00 07 GLIBC_2.3.4\n    0x0d696919 0x00 05 GLIBC_2.9\n    \
        0x069691b4 0x00 02 GLIBC_2.34\n  required from libgcc_s.so.1:\n    0x0b792650 0x00 06 GCC_3.0\n";
    assert_eq!(binary::newest_glibc(headers), 34);
    assert_eq!(binary::newest_glibc("private headers:\n"), 0);
}

/// Two builds of one commit are compared byte by byte, so an archive must not depend on the order of its members.
#[test]
fn an_archive_depends_on_its_members_only() {
    let mut one = Archive::default();
    one.file("usr/bin/abide", 0o755, "program");
    one.link("lib", "usr/lib");
    one.folder("data", 0o700, 65532);
    let mut other = Archive::default();
    other.folder("data", 0o700, 65532);
    other.link("lib", "usr/lib");
    other.file("usr/bin/abide", 0o755, "program");
    let tar = one.to_tar(1_000).expect("memory has room");
    assert_eq!(tar, other.to_tar(1_000).expect("memory has room"));
    let mut members = Vec::new();
    let mut archive = tar::Archive::new(tar.as_slice());
    for member in archive.entries().expect("it is an archive") {
        let member = member.expect("it is a member");
        let header = member.header();
        let path = member.path().expect("it has a path").display().to_string();
        let numbers = [header.uid(), header.gid(), header.mtime()].map(Result::ok);
        members.push((path, header.mode().ok(), numbers));
    }
    let at = |owner| [Some(owner), Some(owner), Some(1_000)];
    let expected = [
        ("data/", 0o700, at(65532)),
        ("lib", 0o777, at(0)),
        ("usr/", 0o755, at(0)),
        ("usr/bin/", 0o755, at(0)),
        ("usr/bin/abide", 0o755, at(0)),
    ];
    let expected = expected.map(|(path, mode, numbers)| (path.to_owned(), Some(mode), numbers));
    assert_eq!(members, expected);
    assert_eq!(gzip(&tar).expect("memory has room")[4..8], [0; 4], "the time of the header");
}

/// The README of a package had links to pages that no package has.
#[test]
fn links_to_files_of_the_repository_are_dropped() {
    for (text, expected) in [
        ("a ![picture](docs/demo.svg) b", "a  b"),
        ("see [install](docs/install.md), or [this](#this)", "see install, or [this](#this)"),
        (
            "[Rust](https://rust-lang.org) and [MIT](LICENSE-MIT)",
            "[Rust](https://rust-lang.org) and [MIT](LICENSE-MIT)",
        ),
        ("a[0](open", "a[0](open"),
    ] {
        assert_eq!(release::drop_links_to_files(text), expected);
    }
}

#[test]
fn members_of_ar_begin_at_even_offsets() {
    let archive = ar(&[("a", b"xyz".to_vec()), ("b", Vec::new())], 7);
    let header =
        |name: &str, size: u8| format!("{name:<16}7           0     0     100644  {size:<10}`\n");
    let expected = format!("!<arch>\n{}xyz\n{}", header("a", 3), header("b", 0));
    assert_eq!(String::from_utf8(archive), Ok(expected));
}

/// The bill of materials names what is in the program, and nothing that only its tests or its build use.
#[test]
fn the_bill_of_materials_is_complete() {
    let dependencies = Dependencies::read(crate::root(), "x86_64-unknown-linux-gnu");
    let dependencies = dependencies.expect("cargo knows the packages");
    let sbom = dependencies.sbom(&"0".repeat(64));
    let components = sbom["components"].as_array().expect("it has components");
    let names: BTreeSet<&str> =
        components.iter().filter_map(|component| component["name"].as_str()).collect();
    for (name, is_in) in [
        ("abide-store", true),
        ("libsqlite3-sys", true),
        ("rustls", true),
        // A dependency of tests, one of a build script, and one of another program.
        ("expect-test", false),
        ("cc", false),
        ("libfuzzer-sys", false),
    ] {
        assert_eq!(names.contains(name), is_in, "{name}");
    }
    let program = &sbom["metadata"]["component"];
    let refs: BTreeSet<&str> =
        components.iter().chain([program]).filter_map(|it| it["bom-ref"].as_str()).collect();
    assert_eq!(refs.len(), components.len() + 1, "a reference is unique");
    let edges = sbom["dependencies"].as_array().expect("it has dependencies");
    assert_eq!(edges.len(), refs.len());
    for edge in edges {
        for used in edge["dependsOn"].as_array().into_iter().flatten() {
            assert!(used.as_str().is_some_and(|used| refs.contains(used)), "{edge}");
        }
    }
    let licences = dependencies.licences().expect("the sources of packages are here");
    assert!(licences.contains("rustls 0.") && licences.contains("Permission is hereby granted"));
    // The licences of C in packages of Rust were missing: those of mimalloc, and of parts of ring.
    for author in ["Microsoft Corporation", "the fiat-crypto authors"] {
        assert!(licences.contains(author), "{author}");
    }
}

#[test]
fn the_versions_that_work_together_are_read_from_the_page() {
    let table =
        "| server | SDKs |\n|---|---|\n| 0.2.0 | 0.1.0, 0.2.0 |\n| 0.1.0 | 0.1.0 | as tested |\n";
    let page = format!(
        "| 9.9.9 | 9.9.9 |\n<!-- versions: run by cargo xtask matrix -->\n\n{table}\n<!-- end of versions -->\n"
    );
    let pair = |server: &str, sdk: &str| Pair { server: server.to_owned(), sdk: sdk.to_owned() };
    let pairs = [pair("0.2.0", "0.1.0"), pair("0.2.0", "0.2.0"), pair("0.1.0", "0.1.0")];
    assert_eq!(read_pairs(&page), Ok(pairs.into()));
    assert!(read_pairs(table).is_err() && read_pairs(&page.replace("0.", "x.")).is_err());
    let own = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/upgrade.md"));
    assert!(read_pairs(&own.expect("it is there")).is_ok());
}
