//! Which ConfigMaps, Secrets and tokens a pod refers to: `VisitPodSecretNames` and
//! `VisitPodConfigmapNames` in `pkg/api/v1/pod/util.go` of Kubernetes, and the projected volumes in
//! `pkg/volume/projected/projected.go`.

use crate::api::{Container, LocalReference, PodSpec, Referrer, VolumeSource};

/// ConfigMaps or Secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// ConfigMaps.
    ConfigMap,
    /// Secrets.
    Secret,
}

/// A ConfigMap or a Secret in the namespace of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The kind.
    pub kind: ObjectKind,
    /// The name.
    pub name: Box<str>,
    /// Whether the object is read again and again, as the content of a volume or to pull images.
    /// Otherwise it is read when a container starts.
    pub is_read_often: bool,
}

/// A token that a pod has in a projected volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSource {
    /// For whom it is; empty for the API server.
    pub audience: Box<str>,
    /// The validity that is asked for, in seconds.
    pub seconds: Option<i64>,
}

/// The ConfigMaps and Secrets of a pod, each once.
pub fn references(spec: &PodSpec) -> Vec<Reference> {
    let mut found = Vec::new();
    for secret in &spec.image_pull_secrets {
        add(&mut found, ObjectKind::Secret, Some(secret), true);
    }
    for container in spec.containers.iter().chain(&spec.init_containers) {
        add_environment(&mut found, container);
    }
    for volume in &spec.volumes {
        volume.source.iter().for_each(|source| add_volume(&mut found, source));
    }
    found
}

/// The tokens of a pod. kubelet requests one that occurs twice once.
pub fn tokens(spec: &PodSpec) -> Vec<TokenSource> {
    let mut found = Vec::new();
    let sources = spec.volumes.iter().filter_map(|it| it.source.as_ref()?.projected.as_ref());
    for token in sources.flat_map(|it| &it.sources) {
        let Some(token) = &token.service_account_token else { continue };
        let source =
            TokenSource { audience: (*token.audience).into(), seconds: token.expiration_seconds };
        if !found.contains(&source) {
            found.push(source);
        }
    }
    found
}

fn add(
    found: &mut Vec<Reference>,
    kind: ObjectKind,
    reference: Option<&LocalReference>,
    is_read_often: bool,
) {
    let name = reference.map_or("", |it| &*it.name);
    if name.is_empty() {
        return;
    }
    match found.iter_mut().find(|it| it.kind == kind && *it.name == *name) {
        Some(known) => known.is_read_often |= is_read_often,
        None => found.push(Reference { kind, name: name.into(), is_read_often }),
    }
}

fn add_environment(found: &mut Vec<Reference>, container: &Container) {
    let mut add = |kind, referrer: &Option<Referrer>| {
        add(found, kind, referrer.as_ref().and_then(|it| it.reference.as_ref()), false);
    };
    for source in &container.env_from {
        add(ObjectKind::Secret, &source.secret_ref);
        add(ObjectKind::ConfigMap, &source.config_map_ref);
    }
    for source in container.env.iter().filter_map(|it| it.value_from.as_ref()) {
        add(ObjectKind::Secret, &source.secret_key_ref);
        add(ObjectKind::ConfigMap, &source.config_map_key_ref);
    }
}

fn add_volume(found: &mut Vec<Reference>, source: &VolumeSource) {
    for secret in [&source.secret, &source.azure_file].into_iter().flatten() {
        let name = secret.secret_name.clone();
        add(found, ObjectKind::Secret, Some(&LocalReference { name }), true);
    }
    let secrets = [
        source.iscsi.as_ref().and_then(|it| it.secret_ref.as_ref()),
        source.rbd.as_ref().and_then(|it| it.secret_ref.as_ref()),
        source.flex_volume.as_ref().and_then(|it| it.secret_ref.as_ref()),
        source.cinder.as_ref().and_then(|it| it.secret_ref.as_ref()),
        source.cephfs.as_ref().and_then(|it| it.secret_ref.as_ref()),
        source.scale_io.as_ref().and_then(|it| it.secret_ref.as_ref()),
        source.storageos.as_ref().and_then(|it| it.secret_ref.as_ref()),
        source.csi.as_ref().and_then(|it| it.secret_ref.as_ref()),
    ];
    secrets.into_iter().for_each(|it| add(found, ObjectKind::Secret, it, true));
    let mut add = |kind, referrer: &Option<Referrer>| {
        add(found, kind, referrer.as_ref().and_then(|it| it.reference.as_ref()), true);
    };
    add(ObjectKind::ConfigMap, &source.config_map);
    for projection in source.projected.iter().flat_map(|it| &it.sources) {
        add(ObjectKind::Secret, &projection.secret);
        add(ObjectKind::ConfigMap, &projection.config_map);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{
        EnvFromSource, EnvVar, EnvVarSource, FifthSecret, NamedSecret, Projected, Projection,
        TokenProjection, Volume,
    };

    fn local(name: &str) -> Option<LocalReference> {
        Some(LocalReference { name: name.into() })
    }

    fn referrer(name: &str) -> Option<Referrer> {
        Some(Referrer { reference: local(name) })
    }

    fn volume(source: VolumeSource) -> Volume {
        Volume { source: Some(source) }
    }

    fn token(audience: &str, seconds: i64) -> Projection {
        let (audience, expiration_seconds) = (audience.to_owned(), Some(seconds));
        let token = TokenProjection { audience, expiration_seconds };
        Projection { service_account_token: Some(token), ..Projection::default() }
    }

    fn spec() -> PodSpec {
        let config = Projection { config_map: referrer("root-ca"), ..Projection::default() };
        let projected = Projected {
            sources: vec![token("", 3607), config, token("", 3607), token("vault", 600)],
        };
        let key = EnvVarSource { secret_key_ref: referrer("shared"), ..EnvVarSource::default() };
        let container = Container {
            env_from: vec![EnvFromSource {
                config_map_ref: referrer("settings"),
                secret_ref: None,
            }],
            env: vec![EnvVar { value_from: Some(key) }, EnvVar { value_from: None }],
            ..Container::default()
        };
        PodSpec {
            image_pull_secrets: vec![LocalReference { name: "registry".into() }],
            init_containers: vec![container],
            volumes: vec![
                volume(VolumeSource { projected: Some(projected), ..VolumeSource::default() }),
                volume(VolumeSource {
                    secret: Some(NamedSecret { secret_name: "shared".into() }),
                    ..VolumeSource::default()
                }),
                volume(VolumeSource {
                    csi: Some(FifthSecret { secret_ref: local("disk") }),
                    ..VolumeSource::default()
                }),
                volume(VolumeSource::default()),
            ],
            ..PodSpec::default()
        }
    }

    #[test]
    fn references_are_found_once() {
        let found = references(&spec());
        let found: Vec<_> = found.iter().map(|it| (it.kind, &*it.name, it.is_read_often)).collect();
        let expected = [
            (ObjectKind::Secret, "registry", true),
            (ObjectKind::ConfigMap, "settings", false),
            // Also the content of a volume.
            (ObjectKind::Secret, "shared", true),
            (ObjectKind::ConfigMap, "root-ca", true),
            (ObjectKind::Secret, "disk", true),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn tokens_are_found_once() {
        let found = tokens(&spec());
        let found: Vec<_> = found.iter().map(|it| (&*it.audience, it.seconds)).collect();
        assert_eq!(found, [("", Some(3607)), ("vault", Some(600))]);
        assert!(tokens(&PodSpec::default()).is_empty());
    }
}
