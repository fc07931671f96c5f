//! Compares thousands of random combinations of list and watch parameters with the outcome of Kubernetes' rules. An
//! outcome is a Status with code, reason and message, a list of objects at a version, or a stream of events. No
//! combination may hang or fail with an unexpected 500.
//!
//! `parameters/rules.rs` contains the rules, from Kubernetes' documentation and from responses of kube-apiserver 1.36.
//! The model of the store is a list of changes. `LISTWATCH_PARAMETERS=100000` sets the number of combinations, and
//! `LISTWATCH_PARAMETERS_SEED=7` the seed.

mod rules;
mod world;

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};

use rules::{Outcome, ReadParameters};
use world::World;

/// The number of combinations per world.
const COMBINATIONS: u32 = 3000;

/// The time limit of a request, on the paused clock. A read waits for at most 3 s, and a watch lasts 1 s or 2 s.
const HANG: Duration = Duration::from_secs(30);

fn number_of(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |text| text.parse().expect("a number"))
}

/// Returns a random value; `None` omits the parameter.
fn one_of(rng: &mut StdRng, values: &[Option<&str>]) -> Option<String> {
    values.choose(rng).copied().flatten().map(str::to_owned)
}

fn asked(rng: &mut StdRng, world: &World) -> ReadParameters {
    let revision = |n: u64| n.to_string();
    let (old, middle, now, later) =
        (revision(world.first), revision(world.middle), revision(world.last), revision(world.last + 1000));
    let versions =
        [None, None, None, Some(""), Some("0"), Some("0"), Some(&*old), Some(&*middle), Some(&*now), Some(&*later)];
    let version = match rng.random_range(0..12) {
        0 => one_of(rng, &[Some("abc"), Some("-1"), Some("18446744073709551616")]),
        _ => one_of(rng, &versions),
    };
    let tokens: Vec<Option<&str>> =
        [None; 12].into_iter().chain(world.tokens.iter().map(|token| Some(token.as_str()))).collect();
    let watches = rng.random_bool(0.5);
    ReadParameters {
        legacy_path: rng.random_bool(0.1),
        watch: if watches {
            one_of(rng, &[Some("true"), Some("1"), Some(""), Some("yes")])
        } else {
            one_of(rng, &[None, None, Some("false"), Some("0"), Some("FALSE")])
        },
        resource_version: version,
        resource_version_match: one_of(
            rng,
            &[
                None,
                None,
                None,
                None,
                Some(""),
                Some("Exact"),
                Some("NotOlderThan"),
                Some("NotOlderThan"),
                Some("exact"),
            ],
        ),
        limit: one_of(
            rng,
            &[None, None, None, Some("0"), Some("1"), Some("2"), Some("3"), Some("500"), Some("-1"), Some("x")],
        ),
        continue_token: one_of(rng, &tokens),
        send_initial_events: one_of(rng, &[None, None, None, None, Some("true"), Some("false")]),
        allow_watch_bookmarks: one_of(rng, &[None, Some("true"), Some("false")]),
        // A watch without a timeout would last half an hour on the paused clock.
        timeout_seconds: one_of(
            rng,
            &[Some("1"), Some("1"), Some("1"), Some("1"), Some("1"), Some("2"), Some("2"), Some("-1"), Some("1x")],
        ),
        label_selector: one_of(
            rng,
            &[
                None,
                None,
                None,
                Some(""),
                Some("app=web"),
                Some("app!=web"),
                Some("app in (web,db)"),
                Some("!app"),
                Some("app in ("),
            ],
        ),
        field_selector: one_of(
            rng,
            &[
                None,
                None,
                None,
                Some(""),
                Some("metadata.name=a"),
                Some("metadata.name!=a"),
                Some("metadata.namespace=shop"),
                Some("metadata.name=nobody"),
                Some("spec.nodeName=n"),
                Some("metadata.name"),
                Some("a=b=c"),
            ],
        ),
        pretty: one_of(rng, &[None, None, None, Some("true"), Some("0")]),
    }
}

async fn every_combination_has_its_outcome(world: World) {
    let seed = number_of("LISTWATCH_PARAMETERS_SEED", rand::random());
    let mut rng = StdRng::seed_from_u64(seed);
    let mut seen = std::collections::BTreeMap::<String, u32>::new();
    for _ in 0..number_of("LISTWATCH_PARAMETERS", COMBINATIONS.into()) {
        let asked = asked(&mut rng, &world);
        let path = asked.path();
        let wanted = rules::outcome(&asked, &world.model());
        let found = tokio::time::timeout(HANG, world.ask(&path));
        let found = found.await.unwrap_or_else(|_| panic!("GET {path} hangs (seed {seed})"));
        let differs = rules::difference(&asked, &wanted, &found);
        assert!(differs.is_none(), "GET {path}\n{}\nfound:  {found:?}\n(seed {seed})", differs.unwrap_or_default());
        *seen.entry(class(&wanted)).or_default() += 1;
    }
    // The test fails if nearly all combinations are rejected, because such a run proves little.
    for wanted in ["list", "watch", "400", "422"] {
        assert!(seen.contains_key(wanted), "no {wanted} among {seen:?} (seed {seed})");
    }
}

fn class(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Refused { code, .. } => code.to_string(),
        Outcome::List { .. } => "list".to_owned(),
        Outcome::Watch { .. } => "watch".to_owned(),
    }
}

#[tokio::test(start_paused = true)]
async fn every_parameter_combination_has_the_expected_response_with_full_history() {
    every_combination_has_its_outcome(World::new(false).await).await;
}

#[tokio::test(start_paused = true)]
async fn every_parameter_combination_has_the_expected_response_after_compaction() {
    every_combination_has_its_outcome(World::new(true).await).await;
}
