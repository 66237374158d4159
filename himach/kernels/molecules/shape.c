#include "molecules/shape.h"

#include "molecules/quad.h"

CLONES void shape_gyration(const float *positions, const double *weights, size_t n, double tensor[9]) {
    /* About the first atom, which is not far off; what the centre makes of it is taken off in the end. */
    const double first[3] = {positions[0], positions[1], positions[2]};
    quad x = {0}, y = {0}, z = {0}, xx = {0}, xy = {0}, xz = {0}, yy = {0}, yz = {0}, zz = {0}, weight = {0};
    for (size_t i = 0; i < n; i += QUAD) {
        const struct atoms a = take(positions, weights, i, n, first);
        const quad wx = a.weight * a.x, wy = a.weight * a.y, wz = a.weight * a.z;
        x += wx;
        y += wy;
        z += wz;
        xx += wx * a.x;
        xy += wx * a.y;
        xz += wx * a.z;
        yy += wy * a.y;
        yz += wy * a.z;
        zz += wz * a.z;
        weight += a.weight;
    }
    const double all = total(&weight), centre[3] = {total(&x) / all, total(&y) / all, total(&z) / all};
    const double products[9] = {total(&xx), total(&xy), total(&xz), total(&xy), total(&yy),
                                total(&yz), total(&xz), total(&yz), total(&zz)};
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < 3; j++) {
            tensor[3 * i + j] = products[3 * i + j] / all - centre[i] * centre[j];
        }
    }
}
