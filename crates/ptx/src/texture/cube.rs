//! Directions to faces of a cube.

/// The face that a direction meets, and where, from 0 to 1.
pub(super) fn face([x, y, z]: [f32; 3]) -> (u32, [f32; 2]) {
    let [ax, ay, az] = [x.abs(), y.abs(), z.abs()];
    let (face, s, t, major) = if ax >= ay && ax >= az {
        if x >= 0.0 { (0, -z, -y, ax) } else { (1, z, -y, ax) }
    } else if ay >= az {
        if y >= 0.0 { (2, x, z, ay) } else { (3, x, -z, ay) }
    } else if z >= 0.0 {
        (4, x, -y, az)
    } else {
        (5, -x, -y, az)
    };
    (face, [(s / major + 1.0) / 2.0, (t / major + 1.0) / 2.0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_meet_the_middle_of_their_faces() {
        let axes = [[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]];
        for (number, axis) in axes.into_iter().enumerate() {
            assert_eq!(face(axis.map(|value| value as f32 * 3.0)), (number as u32, [0.5, 0.5]));
        }
    }
}
