//! `cargo xtask`: the commands of this repository (checks, tests, benches, generated code).
//!
//! `check` changes no file; `fix` applies automatic fixes. CI runs `ci`, which also runs locally.
//! [`VERBS`] lists all verbs and their help.

mod api;
mod args;
mod bench;
mod check;
mod ci;
mod cleanup;
mod codegen;
mod counts;
mod deny;
mod dist;
mod e2e;
mod failure;
mod format;
mod link_order;
mod process;
mod random_tests;
mod sim;
mod steps;
mod test;
mod tidy;
mod tools;

use std::process::ExitCode;

use args::Args;
use failure::{Outcome, fail};

/// A verb: its name, a one-line summary, the help text, and the function.
struct Verb {
    name: &'static str,
    line: &'static str,
    help: &'static str,
    run: fn(Args) -> Outcome<()>,
}

const VERBS: &[Verb] = &[
    Verb {
        name: "check",
        line: "checks format, house rules, clippy, tests and docs; changes no file",
        help: check::HELP,
        run: check::check,
    },
    Verb { name: "fix", line: "applies automatic fixes (clippy, format)", help: check::HELP_FIX, run: check::fix },
    Verb {
        name: "tidy",
        line: "checks the house rules: file headers, cited names and paths, walls",
        help: tidy::HELP,
        run: tidy::run,
    },
    Verb {
        name: "api",
        line: "the public surface of every crate, as listings in docs/api",
        help: api::HELP,
        run: api::run,
    },
    Verb {
        name: "deny",
        line: "dependencies: licenses, bans, sources, yanked crates and advisories",
        help: deny::HELP,
        run: deny::run,
    },
    Verb {
        name: "test",
        line: "unit, property, fault and end-to-end tests, on a bare machine",
        help: test::HELP,
        run: test::run,
    },
    Verb {
        name: "ci",
        line: "everything that CI checks: `test`, lints, docs, packages, dependencies, counts",
        help: ci::HELP,
        run: ci::run,
    },
    Verb { name: "e2e", line: "the built server against real kubectl, curl and etcd", help: e2e::HELP, run: e2e::run },
    Verb {
        name: "codegen",
        line: "the table of Kubernetes' built-in types, from their public definitions",
        help: codegen::HELP,
        run: codegen::run,
    },
    Verb {
        name: "bench",
        line: "lists the benches with their questions, and runs one",
        help: bench::HELP,
        run: bench::run,
    },
    Verb {
        name: "dist",
        line: "the binary for production, optimized for measured requests",
        help: dist::HELP,
        run: dist::run,
    },
    Verb {
        name: "sim",
        line: "the deterministic simulator: seeds, replays and planted bugs",
        help: sim::HELP,
        run: sim::run,
    },
];

fn main() -> ExitCode {
    if let Some(code) = sim::wrap() {
        return code;
    }
    cleanup::on_signals();
    let mut words = std::env::args().skip(1);
    let verb = words.next().unwrap_or_else(|| "help".to_owned());
    match dispatch(&verb, Args::new(words)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask {verb}: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(verb: &str, mut args: Args) -> Outcome<()> {
    if matches!(verb, "help" | "--help" | "-h") {
        return help(args.word().as_deref());
    }
    let Some(found) = VERBS.iter().find(|known| known.name == verb) else {
        fail!("there is no verb `{verb}`; `cargo xtask help` lists them");
    };
    if args.flag("--help") || args.flag("-h") {
        return help(Some(verb));
    }
    (found.run)(args)
}

fn help(verb: Option<&str>) -> Outcome<()> {
    match verb.map(|verb| VERBS.iter().find(|known| known.name == verb)) {
        Some(Some(verb)) => println!("cargo xtask {}: {}\n\n{}", verb.name, verb.line, verb.help.trim()),
        Some(None) => fail!("there is no such verb; `cargo xtask help` lists them"),
        None => {
            println!("cargo xtask <verb>: the commands of this repository\n");
            for verb in VERBS {
                println!("  {:<7} {}", verb.name, verb.line);
            }
            println!("\nBefore a commit: cargo xtask fix && cargo xtask check");
            println!("What CI runs:    cargo xtask ci");
            println!("More on a verb:  cargo xtask help <verb>");
        }
    }
    Ok(())
}
