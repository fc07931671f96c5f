//! Compares the reflector and its store with kube-rs' runtime: initial state, relist, events,
//! memory, and the cost of readers for the writer. Each contender runs in a separate process, with
//! a server in that process that sends the same prepared bytes.

mod contenders;
mod memory;
mod server;
mod store;

use std::process::Command;
use std::time::Duration;

use contenders::Figures;
use server::{Server, Shape};

const HELP: &str = "\
Usage: reflector [--objects N] [--events N] [--keys N]

Prints tables in Markdown. Defaults: 100000 objects, 200000 events, 1000000 keys.";

struct Sizes {
    objects: usize,
    events: usize,
    keys: usize,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |flag: &str, otherwise: usize| {
        let at = arguments.iter().position(|argument| argument == flag);
        at.map_or(otherwise, |at| arguments.get(at + 1).and_then(|text| text.parse().ok()).expect(HELP))
    };
    let sizes = Sizes {
        objects: number("--objects", 100_000),
        events: number("--events", 200_000),
        keys: number("--keys", 1_000_000),
    };
    match arguments.first().map(String::as_str) {
        Some("scenario") => {
            let shape = if arguments[2] == "full" { Shape::Full } else { Shape::Metadata };
            print(&scenario(&arguments[1], shape, &sizes));
        }
        Some("-h" | "--help") => println!("{HELP}"),
        _ => tables(&sizes),
    }
}

/// Runs one contender in this process.
fn scenario(contender: &str, shape: Shape, sizes: &Sizes) -> Figures {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let server = Server::new(sizes.objects, sizes.events, shape);
    runtime.block_on(async {
        match contender {
            "ours" => contenders::ours(server, sizes.events).await,
            _ => contenders::kube(server, sizes.events, shape).await,
        }
    })
}

fn print(figures: &Figures) {
    let Figures { sync, sync_peak, steady, relist_peak, relist, events } = *figures;
    let seconds = [sync.0, sync.1, relist, events].map(|time| time.as_secs_f64().to_string());
    println!("{} {sync_peak} {steady} {relist_peak}", seconds.join(" "));
}

/// Parses the output of a child process.
fn read(line: &str) -> Figures {
    let mut words = line.split_whitespace().map(|word| word.parse::<f64>().expect("a number"));
    let mut next = || words.next().expect("seven numbers");
    let mut seconds = || Duration::from_secs_f64(next());
    let (sync, relist, events) = ((seconds(), seconds()), seconds(), seconds());
    let mut bytes = || next() as usize;
    Figures { sync, relist, events, sync_peak: bytes(), steady: bytes(), relist_peak: bytes() }
}

fn tables(sizes: &Sizes) {
    let program = std::env::current_exe().expect("this program");
    let mib = |bytes: usize| bytes as f64 / (1024.0 * 1024.0);
    println!("| | initial state | CPU | peak | held | relist CPU | relist peak | events/s of CPU |");
    println!("|---|---|---|---|---|---|---|---|");
    for shape in ["full", "metadata"] {
        for contender in ["kube-rs", "ours"] {
            let output = Command::new(&program)
                .args(["scenario", contender, shape, "--objects", &sizes.objects.to_string()])
                .args(["--events", &sizes.events.to_string()])
                .output()
                .expect("this program runs");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let figures = read(&String::from_utf8_lossy(&output.stdout));
            println!(
                "| {contender}, {shape} | {:.2} s | {:.2} s | {:.0} MiB | {:.0} MiB | {:.2} s | {:.0} MiB | {:.0} |",
                figures.sync.0.as_secs_f64(),
                figures.sync.1.as_secs_f64(),
                mib(figures.sync_peak),
                mib(figures.steady),
                figures.relist.as_secs_f64(),
                mib(figures.relist_peak),
                sizes.events as f64 / figures.events.as_secs_f64(),
            );
        }
    }
    println!();
    println!("| keys, two indexes | bytes of objects | held | of objects | relist peak | of held |");
    println!("|---|---|---|---|---|---|");
    for (name, shape) in [("1 KiB", Shape::Full), ("metadata", Shape::Metadata)] {
        let weight = store::weigh(sizes.keys, shape);
        println!(
            "| {} of {name} | {:.0} MiB | {:.0} MiB | {:.2} | {:.0} MiB | {:.3} |",
            sizes.keys,
            mib(weight.objects),
            mib(weight.held),
            weight.held as f64 / weight.objects as f64,
            mib(weight.relist_peak),
            weight.relist_peak as f64 / weight.held as f64,
        );
    }
    println!();
    println!("| readers that never rest | CPU time of the writer for each event |");
    println!("|---|---|");
    for readers in [0, 1, 4, 0, 1, 4] {
        let spent = store::interfere(sizes.objects, sizes.events, readers);
        println!("| {readers} | {:.2} µs |", spent.as_secs_f64() * 1e6);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both contenders must complete the scenario. A deadlock or a lost event would hang or fail
    /// here.
    #[test]
    fn both_contenders_complete_the_scenario() {
        let sizes = Sizes { objects: 1_200, events: 300, keys: 2_000 };
        for shape in [Shape::Full, Shape::Metadata] {
            for contender in ["ours", "kube-rs"] {
                let figures = scenario(contender, shape, &sizes);
                assert!(figures.steady > 1_200 * 300, "{contender} holds too little: {figures:?}");
                assert!(figures.relist_peak >= figures.steady / 2, "{figures:?}");
            }
        }
        let weight = store::weigh(2_000, Shape::Full);
        assert!(weight.held > weight.objects && weight.relist_peak >= weight.held, "{weight:?}");
        assert!(!store::interfere(1_000, 500, 1).is_zero());
    }
}
