//! Two hundred scenarios of several writers, checked against Kubernetes' field manager: the
//! rejected writes and their messages, the final object and its owners.

use crate::story::Outcome;
use listwatch_json::Value;

/// One scenario per line. The comment at the start of the file describes the source.
const STORIES: &str = include_str!("story/kubernetes.txt");

#[test]
fn apply_scenarios_end_as_in_kubernetes() {
    let mut told = 0;
    let (mut refusals, mut owners) = (0, 0);
    for line in STORIES.lines().filter(|line| !line.starts_with('#')) {
        let story: Value = serde_json::from_str(line).unwrap();
        let outcomes = crate::story::run_scenario(&story);
        let refused: Value = outcomes
            .iter()
            .map(|outcome| match outcome {
                Outcome::Refused(why) => Value::from(why.as_str()),
                Outcome::Written { .. } => Value::Null,
            })
            .collect();
        assert_eq!(refused, story["refused"], "what is refused in {line}");
        let end = outcomes.iter().rev().find_map(|outcome| match outcome {
            Outcome::Written { object, managed } => Some((object.clone(), managed.clone())),
            Outcome::Refused(_) => None,
        });
        let (object, managed) = end.expect("something was written");
        assert_eq!(object, story["object"], "the object at the end of {line}");
        assert_eq!(Value::from(managed.clone()), story["managed"], "the owners at the end of {line}");
        told += 1;
        refusals += outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Refused(_))).count();
        owners += managed.len();
    }
    assert!(told == 200 && refusals > 50 && owners > 300, "{told} stories, {refusals} refusals, {owners} owners");
}
