//! Whom a program runs as: a user by number or name.

use std::ffi::CString;
use std::str::FromStr;

use nix::unistd::{Gid, Group, Uid, User as Known, getgrouplist};
use rekindle_protocol::daemon::User;

/// `UID[:GID]` or `NAME[:GROUP]`, as this machine knows them.
#[derive(Clone, Debug)]
pub struct UserSpec {
    pub user: User,
    /// What is set for a user that this machine knows: their home, and their name twice.
    pub environment: Vec<(String, String)>,
}

impl FromStr for UserSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<UserSpec, String> {
        let (who, group) = match text.split_once(':') {
            Some((who, group)) => (who, Some(group)),
            None => (text, None),
        };
        let failed = |error: nix::Error| format!("{text:?} cannot be looked up: {error}");
        let number = who.parse::<u32>().ok().filter(|_| who.bytes().all(|byte| byte.is_ascii_digit()));
        let known = match number {
            Some(number) => Known::from_uid(Uid::from_raw(number)).map_err(failed)?,
            None => Known::from_name(who).map_err(failed)?,
        };
        let uid = known.as_ref().map(|known| known.uid.as_raw()).or(number);
        let uid = uid.filter(|uid| *uid != u32::MAX);
        let uid = uid
            .ok_or_else(|| format!("there is no user {who:?}; give a name of this machine's, or a number"))?;
        let gid = match (group, &known) {
            (Some(group), _) => group_named(group)?,
            (None, Some(known)) => known.gid.as_raw(),
            (None, None) => uid,
        };
        let groups = match (group, &known) {
            (None, Some(known)) => groups_of(known).map_err(failed)?,
            _ => vec![gid],
        };
        let environment = known.iter().flat_map(|known| {
            let home = known.dir.to_string_lossy().into_owned();
            [("HOME", home), ("USER", known.name.clone()), ("LOGNAME", known.name.clone())]
        });
        let environment = environment.map(|(name, value)| (name.to_string(), value)).collect();
        Ok(UserSpec { user: User { uid, gid, groups }, environment })
    }
}

fn group_named(text: &str) -> Result<u32, String> {
    let missing = || format!("there is no group {text:?}; give a name of this machine's, or a number");
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().ok().filter(|gid| *gid != u32::MAX).ok_or_else(missing);
    }
    let known = Group::from_name(text).ok().flatten();
    known.map(|group| group.gid.as_raw()).ok_or_else(missing)
}

fn groups_of(known: &Known) -> nix::Result<Vec<u32>> {
    let name = CString::new(known.name.as_str()).map_err(|_| nix::Error::EINVAL)?;
    Ok(getgrouplist(&name, known.gid)?.into_iter().map(Gid::as_raw).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_numbers_or_names() {
        let root: UserSpec = "root".parse().unwrap();
        assert_eq!((root.user.uid, root.user.gid), (0, 0));
        assert!(root.environment.contains(&("USER".to_string(), "root".to_string())));
        let nobody: UserSpec = "4242424:77".parse().unwrap();
        assert_eq!(nobody.user, User { uid: 4_242_424, gid: 77, groups: vec![77] });
        assert!(nobody.environment.is_empty());
        assert_eq!("4242424".parse::<UserSpec>().unwrap().user.gid, 4_242_424);
        let both: UserSpec = "0:root".parse().unwrap();
        assert_eq!((both.user.gid, both.user.groups), (0, vec![0]));
        for wrong in
            ["", "no such user", "-1", "+1", "4294967295", "root:", "root:no such group", "root:4294967295"]
        {
            let why = wrong.parse::<UserSpec>().unwrap_err();
            assert!(why.contains("there is no"), "{wrong}: {why}");
        }
    }
}
