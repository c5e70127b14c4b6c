//! The status of a pod, field by field.

use serde_json::json;

use super::*;

/// The time at which the tests begin.
const BEGIN: &str = "2023-11-14T22:13:20Z";

fn condition(kind: &str, status: &str, why: Option<(&str, &str)>) -> Value {
    let mut condition = json!({"type": kind, "status": status, "lastProbeTime": null,
        "lastTransitionTime": BEGIN});
    if let Some((reason, message)) = why {
        condition["reason"] = reason.into();
        condition["message"] = message.into();
    }
    condition
}

#[test]
fn a_pod_is_reported_before_its_containers_start_and_when_they_run() {
    let mut world = World::running(settings(1));
    world.pod_changed(pod("a", 7));
    let unready = Some(("ContainersNotReady", "containers with unready status: [main]"));
    let accepted = json!({
        "phase": "Pending",
        "observedGeneration": 1,
        "startTime": BEGIN,
        "hostIP": "127.0.0.1",
        "hostIPs": [{"ip": "127.0.0.1"}],
        "conditions": [
            condition("PodReadyToStartContainers", "False", None),
            condition("Initialized", "True", None),
            condition("Ready", "False", unready),
            condition("ContainersReady", "False", unready),
        ],
        "containerStatuses": [{
            "name": "main", "image": "image", "imageID": "", "ready": false, "started": false,
            "restartCount": 0, "lastState": {},
            "state": {"waiting": {"reason": "ContainerCreating"}},
        }],
    });
    assert_eq!(*world.status_of("a"), accepted);
    world.run(2);
    let running = json!({
        "phase": "Running",
        "observedGeneration": 1,
        "startTime": BEGIN,
        "hostIP": "127.0.0.1",
        "hostIPs": [{"ip": "127.0.0.1"}],
        "podIP": "10.64.0.1",
        "podIPs": [{"ip": "10.64.0.1"}],
        "conditions": [
            condition("PodReadyToStartContainers", "True", None),
            condition("Initialized", "True", None),
            condition("Ready", "True", None),
            condition("ContainersReady", "True", None),
        ],
        "containerStatuses": [{
            "name": "main", "image": "image", "imageID": "node-sim://image", "ready": true,
            "started": true, "restartCount": 0, "lastState": {},
            "containerID": format!("node-sim://{}/main/0", uid(7)),
            "state": {"running": {"startedAt": BEGIN}},
        }],
    });
    assert_eq!(*world.status_of("a"), running);
}

#[test]
fn a_pod_that_is_deleted_before_its_containers_start_is_reported_as_failed() {
    let mut world = World::running(Settings {
        rules: Rules::new(Duration::from_secs(5), Duration::ZERO),
        ..settings(1)
    });
    let mut started = pod("a", 7);
    started.spec.as_mut().unwrap().init_containers = vec![container("first"), container("second")];
    world.pod_changed(started.clone());
    let status = world.status_of("a");
    let incomplete = "containers with incomplete status: [first second]";
    let initialized =
        condition("Initialized", "False", Some(("ContainersNotInitialized", incomplete)));
    assert_eq!(status["conditions"][1], initialized);
    let waiting = json!({"waiting": {"reason": "PodInitializing"}});
    assert_eq!(status["containerStatuses"][0]["state"], waiting);
    assert_eq!(status["initContainerStatuses"][1]["state"], waiting);
    world.pod_changed(deleted(started, 0));
    let status = world.status_of("a");
    assert_eq!(status["phase"], "Failed");
    assert_eq!(status["conditions"][2]["reason"], "PodFailed");
    assert!(status["conditions"][2].get("message").is_none());
    let unknown = json!({"terminated": {
        "exitCode": 137, "reason": "ContainerStatusUnknown",
        "message": "The container could not be located when the pod was terminated",
        "startedAt": null, "finishedAt": null,
    }});
    assert_eq!(status["containerStatuses"][0]["state"], unknown);
    assert_eq!(status["initContainerStatuses"][0]["state"], unknown);
}

#[test]
fn containers_that_ended_are_reported_with_their_last_state() {
    let mut settings = settings(1);
    settings.rules = Rules::new(Duration::ZERO, Duration::from_secs(1));
    let mut world = World::running(settings);
    let mut job = pod("a", 7);
    let owner =
        OwnerReference { kind: "Job".into(), controller: Some(true), ..OwnerReference::default() };
    job.metadata.as_mut().unwrap().owner_references = vec![owner];
    world.pod_changed(job);
    world.run(SECOND + 5);
    let status = &world.status_of("a")["containerStatuses"][0];
    // The restart policy is Always.
    let last = &status["lastState"]["terminated"];
    assert_eq!((&last["exitCode"], &last["reason"]), (&json!(0), &json!("Completed")));
    assert_eq!(last["finishedAt"], "2023-11-14T22:13:21Z");
    assert!(last.get("message").is_none());
    assert_eq!(status["state"]["waiting"]["reason"], Value::Null, "started again at once");
    assert_eq!((&status["restartCount"], &status["started"]), (&json!(1), &json!(true)));
}
