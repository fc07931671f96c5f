//! `counts NAME TURNS` runs one hot path this number of times. `cargo xtask bench counts` counts
//! the instructions of two runs of different length and divides the difference by the additional
//! turns. The result hardly varies, even on a busy machine. `cargo xtask bench counts`
//! compares the result with `benches/counts/baseline.txt`.
//!
//! `counts` without arguments lists the paths. Everything runs on one thread, and nothing waits for
//! a clock.

mod cache;
mod cluster;
mod codec;
mod server;

use std::process::ExitCode;

/// One hot path.
struct HotPath {
    /// The name in the baseline.
    name: &'static str,
    /// The work of one turn.
    turn: &'static str,
    /// The number of turns for a stable result.
    turns: u64,
    run: fn(u64),
}

const PATHS: &[HotPath] = &[
    HotPath { name: "scan-1k", turn: "an object of 1 KiB read as it leaves the store", turns: 2_000, run: codec::scan },
    HotPath {
        name: "match-labels",
        turn: "an object held against a label selector of three terms",
        turns: 10_000,
        run: codec::match_labels,
    },
    HotPath {
        name: "protobuf-event",
        turn: "an event of 1 KiB as a protobuf frame",
        turns: 1_000,
        run: codec::protobuf_event,
    },
    HotPath {
        name: "read-watch",
        turn: "an event of 1 KiB read from a watch stream by a client",
        turns: 2_000,
        run: codec::read_watch,
    },
    HotPath {
        name: "read-list",
        turn: "an object of 1 KiB read from a list by a client",
        turns: 2_000,
        run: codec::read_list,
    },
    HotPath {
        name: "apply-100",
        turn: "an event of 100 bytes taken in by a cache without watchers",
        turns: 4_096,
        run: cache::apply_small,
    },
    HotPath {
        name: "apply-1k",
        turn: "an event of 1 KiB taken in by a cache without watchers",
        turns: 4_096,
        run: cache::apply,
    },
    HotPath {
        name: "deliver",
        turn: "an event taken in and its frame in the hands of 100 watchers",
        turns: 512,
        run: cache::deliver,
    },
    HotPath {
        name: "deliver-label",
        turn: "the same, each of the 100 with a label selector",
        turns: 512,
        run: cache::deliver_by_label,
    },
    HotPath {
        name: "deliver-node",
        turn: "an event to the one of 1,000 watchers whose node it is of",
        turns: 2_048,
        run: cache::deliver_by_node,
    },
    HotPath {
        name: "list",
        turn: "a list of 1,000 objects, from the question to the last byte of the body",
        turns: 40,
        run: cache::list,
    },
    HotPath { name: "get", turn: "GET of an object through the service", turns: 2_000, run: server::get },
    HotPath {
        name: "get-user",
        turn: "the same for a user to whom everything is allowed",
        turns: 2_000,
        run: server::get_as_user,
    },
    HotPath {
        name: "get-rbac",
        turn: "the same for a user whom RBAC allows it by one of 1,001 bindings",
        turns: 2_000,
        run: server::get_by_rbac,
    },
    HotPath {
        name: "get-token",
        turn: "the same by a bearer token of a user to whom everything is allowed",
        turns: 2_000,
        run: server::get_with_token,
    },
    HotPath {
        name: "get-token-rbac",
        turn: "the same by a bearer token of a user whom RBAC allows it",
        turns: 2_000,
        run: server::get_with_token_by_rbac,
    },
    HotPath {
        name: "create",
        turn: "POST of a ConfigMap of 1 KiB through the service",
        turns: 300,
        run: server::create,
    },
    HotPath {
        name: "create-deployment",
        turn: "POST of a Deployment of 1 KiB through the service",
        turns: 300,
        run: server::create_deployment,
    },
    HotPath {
        name: "create-webhooks",
        turn: "the same beside 1,000 webhook configurations for other resources or other operations",
        turns: 300,
        run: server::create_beside_webhooks,
    },
    HotPath {
        name: "update",
        turn: "PUT of a ConfigMap of 1 KiB through the service",
        turns: 300,
        run: server::update,
    },
    HotPath { name: "patch", turn: "a JSON merge patch through the service", turns: 300, run: server::patch },
    HotPath {
        name: "watch",
        turn: "PUT of an object and its event in the bodies of 10 watches",
        turns: 300,
        run: server::watch,
    },
    HotPath {
        name: "watch-user",
        turn: "the same, the watches are of a user to whom everything is allowed",
        turns: 300,
        run: server::watch_as_user,
    },
    HotPath {
        name: "watch-rbac",
        turn: "the same, the watches are of a user whom RBAC allows them",
        turns: 300,
        run: server::watch_by_rbac,
    },
    HotPath { name: "list-http", turn: "LIST of 500 objects through the service", turns: 40, run: server::list },
    HotPath {
        name: "create-pod",
        turn: "POST of a Pod in protobuf, as the ReplicaSet controller creates it",
        turns: 200,
        run: cluster::create_pod,
    },
    HotPath { name: "bind", turn: "POST of the Binding of a Pod in protobuf", turns: 90, run: cluster::bind },
    HotPath {
        name: "pod-status",
        turn: "a strategic merge patch of a Pod's status, as the kubelet sends it",
        turns: 200,
        run: cluster::patch_pod_status,
    },
    HotPath { name: "create-event", turn: "POST of an Event in protobuf", turns: 200, run: cluster::create_event },
    HotPath { name: "renew-lease", turn: "PUT of a Lease in protobuf", turns: 200, run: cluster::renew_lease },
    HotPath {
        name: "node-status",
        turn: "a strategic merge patch of a Node's status, as the kubelet sends it",
        turns: 200,
        run: cluster::patch_node_status,
    },
    HotPath { name: "table", turn: "LIST of 500 objects as a Table", turns: 100, run: server::table },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [] => {
            for path in PATHS {
                println!("{}\t{}\t{}", path.name, path.turns, path.turn);
            }
            ExitCode::SUCCESS
        }
        [name, turns] => match (PATHS.iter().find(|path| path.name == *name), turns.parse()) {
            (Some(path), Ok(turns)) => {
                (path.run)(turns);
                ExitCode::SUCCESS
            }
            _ => {
                eprintln!("counts NAME TURNS: there is no path `{name}`, or `{turns}` is no number");
                ExitCode::from(2)
            }
        },
        _ => {
            eprintln!("counts [NAME TURNS]: alone it lists the names");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PATHS;

    #[test]
    fn every_hot_path_runs_and_has_a_unique_name() {
        for (at, path) in PATHS.iter().enumerate() {
            assert!(PATHS[..at].iter().all(|other| other.name != path.name), "{} stands twice", path.name);
            (path.run)(2);
        }
    }

    #[test]
    fn baseline_lists_exactly_the_hot_paths() {
        let baseline = include_str!("../baseline.txt");
        let named: Vec<&str> = baseline
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split_whitespace().next())
            .collect();
        let there: Vec<&str> = PATHS.iter().map(|path| path.name).collect();
        assert_eq!(named, there, "make it again: cargo xtask bench counts --accept");
    }
}
