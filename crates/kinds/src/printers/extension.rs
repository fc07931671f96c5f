//! What extends or guards the API itself: services of it, admission, flow control,
//! bindings of roles, and devices.

use super::text::{NONE, UNSET, condition};
use super::{Printed, Printer};
use crate::table::Cell;
use crate::table::Json;
use crate::table::{AGE, Column, NAME};

pub(crate) static WEBHOOKS: Printer = Printer {
    columns: &[NAME, Column::integer("Webhooks", "How many webhooks this configures."), AGE],
    cells: |hooks| vec![hooks.name().into(), hooks.get("webhooks").len().into(), hooks.age().into()],
};

const PARAM_KIND: Column = Column::text("ParamKind", "The kind of the policy's parameters.");

fn policy(policy: Printed<'_>, rules: &str) -> Vec<Cell> {
    let kind = policy.at("spec.paramKind");
    let kind = match kind.exists() {
        true => format!("{}/{}", kind.get("apiVersion").string(), kind.get("kind").string()),
        false => UNSET.to_owned(),
    };
    vec![policy.name().into(), policy.spec().get(rules).len().into(), kind.into(), policy.age().into()]
}

pub(crate) static VALIDATING_POLICY: Printer = Printer {
    columns: &[NAME, Column::integer("Validations", "How many rules the policy has."), PARAM_KIND, AGE],
    cells: |object| policy(object, "validations"),
};

pub(crate) static MUTATING_POLICY: Printer = Printer {
    columns: &[NAME, Column::integer("Mutations", "How many mutations the policy has."), PARAM_KIND, AGE],
    cells: |object| policy(object, "mutations"),
};

pub(crate) static POLICY_BINDING: Printer = Printer {
    columns: &[
        NAME,
        Column::text("PolicyName", "The policy that is bound."),
        Column::text("ParamRef", "The parameters that it is bound with."),
        AGE,
    ],
    cells: |binding| {
        let parameters = binding.at("spec.paramRef");
        let [namespace, name] = ["namespace", "name"].map(|key| parameters.get(key).string());
        let parameters = match (namespace.as_str(), name.as_str()) {
            // Whether the parameters live in namespaces cannot be told from here.
            ("", "") if parameters.get("selector").exists() => super::text::selector_cell(parameters.get("selector")),
            (_, "") => UNSET.to_owned(),
            ("", name) => format!("*/{name}"),
            (namespace, name) => format!("{namespace}/{name}"),
        };
        vec![
            binding.name().into(),
            binding.at("spec.policyName").string().into(),
            parameters.into(),
            binding.age().into(),
        ]
    },
};

pub(crate) static FLOW_SCHEMA: Printer = Printer {
    columns: &[
        NAME,
        Column::text("PriorityLevel", "The level that matching requests go to."),
        Column::text("MatchingPrecedence", "The lowest that matches wins."),
        Column::text("DistinguisherMethod", "What makes two requests two flows."),
        AGE,
        Column::text("MissingPL", "Whether the level does not exist."),
    ],
    cells: |schema| {
        let spec = schema.spec();
        let dangling = condition(schema.at("status.conditions"), "Dangling");
        vec![
            schema.name().into(),
            spec.at("priorityLevelConfiguration.name").string().into(),
            spec.get("matchingPrecedence").int().unwrap_or(1000).into(),
            spec.at("distinguisherMethod.type").string_or(NONE).into(),
            schema.age().into(),
            dangling.map_or_else(|| "?".to_owned(), |dangling| dangling.get("status").string()).into(),
        ]
    },
};

pub(crate) static PRIORITY_LEVEL: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Type", "Limited or Exempt."),
        Column::text("NominalConcurrencyShares", "The level's share of all seats."),
        Column::text("Queues", "How many queues the level has."),
        Column::text("HandSize", "How many queues a flow is dealt."),
        Column::text("QueueLengthLimit", "How many requests may wait in a queue."),
        AGE,
    ],
    cells: |level| {
        let limited = level.at("spec.limited");
        let queuing = limited.at("limitResponse.queuing");
        let number = |json: Json<'_>, key: &str| json.get(key).int().map_or_else(|| NONE.into(), Cell::Integer);
        vec![
            level.name().into(),
            level.at("spec.type").string().into(),
            number(limited, "nominalConcurrencyShares"),
            number(queuing, "queues"),
            number(queuing, "handSize"),
            number(queuing, "queueLengthLimit"),
            level.age().into(),
        ]
    },
};
