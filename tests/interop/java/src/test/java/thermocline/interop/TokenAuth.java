package thermocline.interop;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import org.apache.bookkeeper.auth.AuthCallbacks.GenericCallback;
import org.apache.bookkeeper.auth.AuthToken;
import org.apache.bookkeeper.auth.ClientAuthProvider;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.proto.ClientConnectionPeer;

/**
 * Shows a token to bookies, as Thermocline's own clients do: one message, which holds the token's bytes.
 *
 * <p>With TLS the token waits for the handshake. BookKeeper's client lets a plug-in speak as soon as the connection is there, which
 * is before START_TLS: what is said then goes over the wire in clear.
 */
public final class TokenAuth implements ClientAuthProvider.Factory {
    /** The setting that has the token. */
    static final String TOKEN = "thermocline.token";

    private byte[] token;
    private boolean secured;

    @Override
    public void init(ClientConfiguration configuration) throws IOException {
        String text = configuration.getString(TOKEN);
        if (text == null) {
            throw new IOException("no " + TOKEN);
        }
        token = text.getBytes(StandardCharsets.UTF_8);
        secured = configuration.getTLSProviderFactoryClass() != null;
    }

    @Override
    public String getPluginName() {
        return "thermocline-token";
    }

    @Override
    public ClientAuthProvider newProvider(ClientConnectionPeer peer, GenericCallback<Void> done) {
        return new ClientAuthProvider() {
            private GenericCallback<AuthToken> send;

            @Override
            public void init(GenericCallback<AuthToken> callback) {
                send = callback;
                if (!secured) {
                    show();
                }
            }

            @Override
            public void onProtocolUpgrade() {
                show();
            }

            private void show() {
                send.operationComplete(BKException.Code.OK, AuthToken.wrap(token));
            }

            @Override
            public void process(AuthToken answer, GenericCallback<AuthToken> callback) {
                // The server answers only whom it lets in.
                done.operationComplete(BKException.Code.OK, null);
            }
        };
    }
}
