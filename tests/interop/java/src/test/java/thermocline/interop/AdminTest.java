package thermocline.interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.BookieInfoReader.BookieInfo;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.util.AvailabilityOfEntriesOfLedger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.ExtendWith;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import thermocline.interop.cluster.Bookie;
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

    @ParameterizedTest
    @EnumSource
    void bookiesTellTheirDisks(Wire wire) throws Exception {
        try (BookKeeper client = cluster.connect(wire)) {
            Map<BookieId, BookieInfo> info = client.getBookieInfo();
            for (Bookie bookie : cluster.bookies()) {
                BookieInfo disk = info.get(bookie.id());
                assertTrue(disk.getFreeDiskSpace() > 0, () -> bookie.id() + ": " + disk);
                assertTrue(disk.getFreeDiskSpace() <= disk.getTotalDiskSpace(), () -> bookie.id() + ": " + disk);
            }
        }
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

    /** The replicas' check of BookKeeper's auditor: which entries of a striped ledger each bookie has. */
    @Test
    void eachBookieListsTheEntriesItHas() throws Exception {
        int count = 50;
        int ensemble = 3;
        try (BookKeeper client = cluster.connect(Wire.V3);
                BookKeeperAdmin admin = new BookKeeperAdmin(client, cluster.configuration(Wire.V3))) {
            LedgerHandle writer = client.createLedger(ensemble, 2, 2, DigestType.CRC32C, Payloads.PASSWORD);
            Payloads.append(writer, count);
            writer.close();
            List<BookieId> members = writer.getLedgerMetadata().getAllEnsembles().get(0L);
            for (int index = 0; index < ensemble; index++) {
                AvailabilityOfEntriesOfLedger entries =
                    admin.asyncGetListOfEntriesOfLedger(members.get(index), writer.getId()).get(30, TimeUnit.SECONDS);
                long held = 0;
                for (long entry = 0; entry < count; entry++) {
                    boolean expected = entry % ensemble == index || (entry + 1) % ensemble == index;
                    assertEquals(expected, entries.isEntryAvailable(entry), "entry " + entry + " at " + index);
                    held += expected ? 1 : 0;
                }
                assertEquals(held, entries.getTotalNumOfAvailableEntries());
            }
        }
    }
}
