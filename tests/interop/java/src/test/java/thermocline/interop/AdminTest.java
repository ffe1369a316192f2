package thermocline.interop;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.HashSet;
import java.util.Set;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.net.BookieId;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.ExtendWith;
import thermocline.interop.cluster.Cluster;
import thermocline.interop.cluster.SharedCluster;
import thermocline.interop.cluster.Wire;

/** What administrators and placement ask bookies for. */
@ExtendWith(SharedCluster.class)
class AdminTest {
    private final Cluster cluster;

    AdminTest(Cluster cluster) {
        this.cluster = cluster;
    }

    @Test
    void everyBookieIsListed() throws Exception {
        try (BookKeeper client = cluster.connect(Wire.V3);
                BookKeeperAdmin admin = new BookKeeperAdmin(client, cluster.configuration(Wire.V3))) {
            Set<BookieId> expected = new HashSet<>();
            cluster.bookies().forEach(bookie -> expected.add(bookie.id()));
            assertEquals(expected, new HashSet<>(admin.getAvailableBookies()));
        }
    }
}
